//! Dates for people: UTC, so that output is the same on every machine.

use std::{
    fmt,
    time::{SystemTime, UNIX_EPOCH},
};

/// A time in UTC, shown as `2026-11-18 10:07:49Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Utc(pub SystemTime);

impl fmt::Display for Utc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = match self.0.duration_since(UNIX_EPOCH) {
            Ok(since) => i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
            Err(before) => i64::try_from(before.duration().as_secs()).map_or(i64::MIN, |seconds| -seconds),
        };
        let (year, month, day) = civil(seconds.div_euclid(86_400));
        let second = seconds.rem_euclid(86_400);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        f.pad(&format!(
            "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}Z"
        ))
    }
}

/// The date of a day since 1970-01-01, in the Gregorian calendar. Years begin in March here, so that the day that leap
/// years add is their last one.
fn civil(days: i64) -> (i64, i64, i64) {
    // Days since 0000-03-01.
    let days = days.saturating_add(719_468);
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00Z"),
            (951_782_399, "2000-02-28 23:59:59Z"),
            (951_782_400, "2000-02-29 00:00:00Z"),
            (1_078_012_800, "2004-02-29 00:00:00Z"),
            (1_794_996_469, "2026-11-18 10:07:49Z"),
            (4_107_542_400, "2100-03-01 00:00:00Z"),
        ] {
            assert_eq!(Utc(UNIX_EPOCH + Duration::from_secs(seconds)).to_string(), text);
        }
        let before = Utc(UNIX_EPOCH - Duration::from_secs(1));
        assert_eq!(before.to_string(), "1969-12-31 23:59:59Z");
    }
}
