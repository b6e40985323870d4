//! Login of a connection: `ICReq`, then Connect.

use std::{sync::Arc, time::Instant};

use straightway_nvme::{
    Pdu, Sqe, Status,
    entry::FLAGS_SGL,
    fabrics::{self, Connect, ConnectData, Connected, DYNAMIC_CONTROLLER, Fabrics, invalid_parameter},
};

use crate::{
    connect_refusal::{CONTROLLER_AT, HOST_AT, QUEUE_AT, Refusal, SIZE_AT, SUBSYSTEM_AT, in_command, in_data},
    connection::{Connection, sequence},
    controller::{Association, Controller},
    end::End,
    fence::Fence,
    host::{HostIdentity, add},
    state::Shared,
};

/// MQES: the maximum queue size in entries, less one.
pub(crate) const QUEUE_SIZE_MAX: u16 = 1023;

/// A connection that has become a queue.
#[derive(Debug)]
pub(crate) struct Login {
    pub(crate) controller: Arc<Controller>,
    pub(crate) fence: Arc<Fence>,
    pub(crate) connect: Connect,
    /// The Connect command, which is not completed yet.
    pub(crate) sqe: Sqe,
    pub(crate) answer: Connected,
}

/// Waits for `ICReq` and Connect, which must both arrive within the login timeout. Completes Connect if it is refused.
pub(crate) fn login(shared: &Shared, port: usize, connection: &mut Connection) -> Result<Login, End> {
    connection.deadline = Some(Instant::now() + shared.login_timeout);
    connection.begin()?;
    let frame = connection.first()?;
    let Pdu::Command(sqe) = frame.pdu else {
        return Err(sequence("data before Connect"));
    };
    let connect = match Fabrics::from_sqe(&sqe) {
        Ok(Fabrics::Connect(connect)) if sqe.opcode == fabrics::OPCODE => connect,
        _ => return Err(connection.refuse(&sqe, Status::COMMAND_SEQUENCE.dnr(), 0)),
    };
    if sqe.flags != FLAGS_SGL {
        return Err(connection.refuse(&sqe, Status::INVALID_FIELD.dnr(), 0));
    }
    let data = connection
        .capsule_data(&frame)
        .map_err(|status| (status, 0))
        .and_then(|data| {
            let wrong = |(offset, _)| in_data(offset);
            ConnectData::decode(data).map_err(wrong)
        });
    connection.receiver.consume(frame.total_bytes());
    let found = data.and_then(|data| {
        if connect.queue == 0 {
            admin(shared, port, connect, &data)
        } else {
            io(shared, connect, &data)
        }
    });
    let added = found.and_then(|controller| {
        let fence = controller.add_queue(connect.queue, &connection.socket)?;
        Ok((controller, fence))
    });
    match added {
        Ok((controller, fence)) => {
            add(&controller.host.counters.queues, 1);
            // Every queue authenticates itself: whoever knows the names in Connect could open an I/O queue.
            let needs_auth = controller.host.keys.is_some();
            if !needs_auth {
                controller.mark_alive();
            }
            Ok(Login {
                answer: Connected {
                    controller: controller.id,
                    needs_auth,
                    needs_concat: false,
                },
                controller,
                fence,
                connect,
                sqe,
            })
        }
        Err((status, result)) => Err(connection.refuse(&sqe, status, result)),
    }
}

fn admin(shared: &Shared, port: usize, connect: Connect, data: &ConnectData) -> Result<Arc<Controller>, Refusal> {
    let is_discovery = data.subsystem.is_discovery();
    if !is_discovery && data.subsystem != shared.nqn {
        return Err(in_data(SUBSYSTEM_AT));
    }
    if connect.size == 0 || connect.size > QUEUE_SIZE_MAX {
        return Err(in_command(SIZE_AT));
    }
    if data.controller != DYNAMIC_CONTROLLER {
        return Err(in_data(CONTROLLER_AT));
    }
    let Some(host) = shared.hosts.admit(&data.host) else {
        tracing::warn!("host {} is not allowed to connect", data.host);
        let at = invalid_parameter(HOST_AT, true);
        return Err((Status::CONNECT_INVALID_HOST.dnr(), at));
    };
    let association = Association {
        is_discovery,
        host,
        identity: identity(data),
        port,
        keep_alive_ms: connect.keep_alive_ms,
    };
    match shared.associate(association) {
        Ok(Some(controller)) => Ok(controller),
        Ok(None) | Err(_) => Err((Status::CONNECT_BUSY, 0)),
    }
}

fn identity(data: &ConnectData) -> HostIdentity {
    HostIdentity {
        nqn: data.host.clone(),
        id: data.host_id,
    }
}

fn io(shared: &Shared, connect: Connect, data: &ConnectData) -> Result<Arc<Controller>, Refusal> {
    let controller = shared
        .controller(data.controller)
        .ok_or_else(|| in_data(CONTROLLER_AT))?;
    if controller.is_discovery || data.subsystem != shared.nqn {
        return Err(in_data(SUBSYSTEM_AT));
    }
    // Another host must not reach a controller by guessing its identifier.
    if controller.identity != identity(data) {
        return Err(in_data(HOST_AT));
    }
    if connect.size == 0 || connect.size > QUEUE_SIZE_MAX {
        return Err(in_command(SIZE_AT));
    }
    if connect.queue > shared.queues_max {
        return Err(in_command(QUEUE_AT));
    }
    Ok(controller)
}
