//! Login of a connection: `ICReq`, then Connect.

use std::sync::{Arc, atomic::Ordering};

use straightway_nvme::{
    Pdu, Sqe, Status,
    entry::FLAGS_SGL,
    fabrics::{
        self, Connect, ConnectData, Connected, DYNAMIC_CONTROLLER, Fabrics, invalid_parameter,
    },
};

use crate::{
    connection::{Connection, End, sequence},
    controller::{Association, Controller},
    host::add,
    state::Shared,
};

/// MQES: the maximum queue size in entries, less one.
pub(crate) const QUEUE_SIZE_MAX: u16 = 1023;

/// Offsets of Connect fields in errors.
const QUEUE_AT: u16 = 42;
const SIZE_AT: u16 = 44;
const CONTROLLER_AT: u16 = 16;
const SUBSYSTEM_AT: u16 = 256;
const HOST_AT: u16 = 512;

/// A connection that has become a queue.
#[derive(Debug)]
pub(crate) struct Login {
    pub(crate) controller: Arc<Controller>,
    pub(crate) connect: Connect,
    /// The Connect command, which is not completed yet.
    pub(crate) sqe: Sqe,
    pub(crate) answer: Connected,
}

/// The status and dword 0 of a refused Connect.
type Refusal = (Status, u64);

/// Waits for `ICReq` and Connect. Completes Connect if it is refused.
pub(crate) fn login(
    shared: &Shared,
    port: usize,
    connection: &mut Connection,
) -> Result<Login, End> {
    connection.begin(shared.login_timeout)?;
    let frame = connection.first(shared.login_timeout)?;
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
    match found {
        Ok(controller) => {
            if !controller.add_queue(connect.queue, &connection.socket) {
                let result = invalid_parameter(QUEUE_AT, false);
                let status = Status::CONNECT_INVALID_PARAM.dnr();
                return Err(connection.refuse(&sqe, status, result));
            }
            add(&controller.host.counters.queues, 1);
            controller.mark_alive();
            let needs_auth = !controller.is_trusted.load(Ordering::Relaxed);
            Ok(Login {
                answer: Connected {
                    controller: controller.id,
                    needs_auth: needs_auth && connect.queue == 0,
                    needs_concat: false,
                },
                controller,
                connect,
                sqe,
            })
        }
        Err((status, result)) => Err(connection.refuse(&sqe, status, result)),
    }
}

fn in_data(offset: u16) -> Refusal {
    let status = Status::CONNECT_INVALID_PARAM.dnr();
    (status, invalid_parameter(offset, true))
}

fn in_command(offset: u16) -> Refusal {
    let status = Status::CONNECT_INVALID_PARAM.dnr();
    (status, invalid_parameter(offset, false))
}

fn admin(
    shared: &Shared,
    port: usize,
    connect: Connect,
    data: &ConnectData,
) -> Result<Arc<Controller>, Refusal> {
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
    let (host, is_allowed) = shared.hosts.find(&data.host);
    if !is_allowed {
        add(&host.counters.refused, 1);
        tracing::warn!("host {} is not allowed to connect", host.nqn);
        let at = invalid_parameter(HOST_AT, true);
        return Err((Status::CONNECT_INVALID_HOST.dnr(), at));
    }
    let association = Association {
        is_discovery,
        host,
        host_id: data.host_id,
        port,
        keep_alive_ms: connect.keep_alive_ms,
    };
    match shared.associate(association) {
        Ok(Some(controller)) => Ok(controller),
        Ok(None) | Err(_) => Err((Status::CONNECT_BUSY, 0)),
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
    if controller.host_id != data.host_id || controller.host.nqn != data.host {
        return Err(in_data(HOST_AT));
    }
    if !controller.is_trusted.load(Ordering::Relaxed) {
        return Err((Status::AUTH_REQUIRED.dnr(), 0));
    }
    if connect.size == 0 || connect.size > QUEUE_SIZE_MAX {
        return Err(in_command(SIZE_AT));
    }
    if connect.queue > shared.queues_max {
        return Err(in_command(QUEUE_AT));
    }
    if !controller.is_ready() {
        return Err((Status::COMMAND_SEQUENCE.dnr(), 0));
    }
    Ok(controller)
}
