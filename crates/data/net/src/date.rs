//! Dates in headers.

const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

/// The days from the first of March of the year 0 to 1970-01-01.
const DAYS_BEFORE_1970: u64 = 719_468;

/// The seconds since 1970 of a date such as `Sun, 06 Nov 1994 08:49:37 GMT`. `None` for any other form: servers must
/// not send the two obsolete ones (RFC 9110, section 5.6.7).
pub(crate) fn seconds_of(text: &str) -> Option<u64> {
    let (_, rest) = text.split_once(", ")?;
    let words: Vec<_> = rest.split(' ').collect();
    let [day, month, year, time, "GMT"] = words[..] else {
        return None;
    };
    let clock: Vec<_> = time.split(':').collect();
    let [hour, minute, second] = clock[..] else {
        return None;
    };
    let (month, _) = (1..).zip(MONTHS).find(|(_, name)| *name == month)?;
    let days = days(number(year, 1970, 9999)?, month, number(day, 1, 31)?)?;
    let minutes = number(hour, 0, 23)? * 60 + number(minute, 0, 59)?;
    // A minute may have a leap second.
    Some(days * 86_400 + minutes * 60 + number(second, 0, 60)?)
}

/// A decimal number within bounds.
fn number(text: &str, least: u64, most: u64) -> Option<u64> {
    let is_decimal = text.bytes().all(|byte| byte.is_ascii_digit());
    let number: u64 = text.parse().ok().filter(|_| is_decimal)?;
    (least..=most).contains(&number).then_some(number)
}

/// The days from 1970-01-01 to a date.
fn days(year: u64, month: u64, day: u64) -> Option<u64> {
    // Years begin in March here, so that a leap day is the last day of its year.
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let leap_days = year / 4 - year / 100 + year / 400;
    let before_month = (153 * month + 2) / 5;
    (365 * year + leap_days + before_month + day - 1).checked_sub(DAYS_BEFORE_1970)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_of_headers_are_parsed_and_other_forms_are_refused() {
        for (text, seconds) in [
            ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
            ("Sun, 06 Nov 1994 08:49:37 GMT", 784_111_777),
            ("Tue, 29 Feb 2000 23:59:59 GMT", 951_868_799),
            ("Wed, 01 Mar 2000 00:00:00 GMT", 951_868_800),
            ("Fri, 31 Dec 2027 12:00:00 GMT", 1_830_254_400),
        ] {
            assert_eq!(seconds_of(text), Some(seconds), "{text}");
        }
        for bad in [
            "",
            "120",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
            "Sun, 06 Nov 1994 08:49:37 UTC",
            "Sun, 06 Nov 1994 24:00:00 GMT",
            "Sun, 00 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 08:49 GMT",
            "Sun, +6 Nov 1994 08:49:37 GMT",
            "Wed, 31 Dec 1969 23:59:59 GMT",
        ] {
            assert_eq!(seconds_of(bad), None, "{bad}");
        }
    }
}
