//! Wall-clock time as the API writes it.

use std::time::{SystemTime, UNIX_EPOCH};

use protocol::calendar::Date;

/// Unix milliseconds now.
pub fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64)
}

/// RFC 3339 in UTC with milliseconds, from Unix seconds and nanoseconds.
pub fn rfc3339(seconds: i64, nanoseconds: u32) -> String {
    let Date { year, month, day } = Date::of(seconds.div_euclid(86_400));
    let second_of_day = seconds.rem_euclid(86_400);
    let (hour, minute, second) = (second_of_day / 3600, second_of_day / 60 % 60, second_of_day % 60);
    let millis = nanoseconds / 1_000_000;
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

/// RFC 3339 from Unix milliseconds.
pub fn rfc3339_ms(ms: i64) -> String {
    rfc3339(ms.div_euclid(1000), (ms.rem_euclid(1000) * 1_000_000) as u32)
}

#[cfg(test)]
mod tests {
    use super::{rfc3339, rfc3339_ms};

    #[test]
    fn known_instants() {
        assert_eq!(rfc3339(0, 0), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339(951_782_400, 5_000_000), "2000-02-29T00:00:00.005Z");
        assert_eq!(rfc3339(-1, 999_000_000), "1969-12-31T23:59:59.999Z");
        assert_eq!(rfc3339_ms(1_700_000_000_123), "2023-11-14T22:13:20.123Z");
    }
}
