//! Checks that the objects of a transfer support the route that the user demands.

use super::Planner;
use crate::{
    error::{Error, ErrorKind, Result},
    place::Place,
    route::{Choice, Reason, Route},
};

impl Planner<'_> {
    /// Returns an error if an object does not support the route that the user demands.
    pub(super) fn check_demand(&self) -> Result<()> {
        let Choice::Only(route) = self.policy.choice else {
            return Ok(());
        };
        let sides = [self.surveys, self.onward].into_iter();
        let mut all = sides.flat_map(|surveys| self.transfer.objects().iter().zip(surveys));
        if let Some((object, _)) = all.find(|(_, s)| s.socket.is_some() && route != Route::Staged) {
            let why = "its bytes go over a socket: neither by DMA nor through the page cache";
            return Err(
                Error::new(ErrorKind::Unsupported, "choose the route of", &object.name, why)
                    .with_hint("use ⟦route=auto⟧"),
            );
        }
        if route == Route::Buffered {
            return Ok(());
        }
        for (object, survey) in self.transfer.objects().iter().zip(self.surveys) {
            let on_device = self.policy.place != Place::Host && route == Route::Direct;
            let refuse = |why: &str, hint: &str| {
                let operation = if route == Route::Direct {
                    "go direct with"
                } else {
                    "stage"
                };
                Err(Error::new(ErrorKind::Unsupported, operation, &object.name, why).with_hint(hint))
            };
            if let Err(reason) = survey.usable() {
                let why = no_direct("its", reason);
                return refuse(&why, "use ⟦route=auto⟧ or ⟦route=buffered⟧");
            }
            if survey.socket.is_some() {
                continue;
            }
            if self.direct(survey).is_err() {
                return refuse(
                    "its blocks are larger than a chunk",
                    "use ⟦route=auto⟧, or a ⟦chunk⟧ of at least 64 KiB",
                );
            }
            if on_device && !survey.device_direct {
                return refuse(
                    "DMA between it and that memory is not proven",
                    "`straightway doctor` says what is missing; ⟦route=auto⟧ stages instead",
                );
            }
        }
        for (object, survey) in self.transfer.objects().iter().zip(self.onward) {
            let why = match (survey.usable(), self.direct(survey)) {
                (Err(reason), _) => no_direct("the target's", reason),
                (_, Err(_)) => "the target's blocks are larger than a chunk".to_owned(),
                _ => continue,
            };
            let operation = "go direct with the copy of";
            return Err(Error::new(ErrorKind::Unsupported, operation, &object.name, why)
                .with_hint("use ⟦route=auto⟧ or ⟦route=buffered⟧"));
        }
        Ok(())
    }
}

/// A message that says why O_DIRECT cannot be used. `whose` names the owner of the file system.
fn no_direct(whose: &str, reason: Reason) -> String {
    match reason {
        Reason::FileSystemBuffers => format!(
            "{whose} file system would use the page cache for O_DIRECT: compressed or checksummed \
             data, or a file without extents"
        ),
        Reason::DirectUnproven => {
            format!("{whose} file system does not say whether O_DIRECT bypasses the page cache")
        }
        _ => format!("{whose} file system has no O_DIRECT"),
    }
}
