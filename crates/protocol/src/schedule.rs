//! When a periodic hook runs: cron's five fields, its named forms, or a period. All times are UTC.

use std::fmt;

use crate::calendar::Date;

/// Seconds of a minute, an hour and a day.
const MINUTE: i64 = 60;
const HOUR: i64 = 3600;
const DAY: i64 = 86_400;
/// Every date that exists comes within so many seconds: a 29th of February falls on a given weekday every 28
/// years, and after 40 across a century that has none.
const HORIZON: i64 = 41 * 366 * DAY;
/// Longest period of `@every`, in seconds: a year.
const MAX_PERIOD: i64 = 366 * DAY;

/// Lower-case, in order.
const MONTHS: [&str; 12] = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/// A schedule that comes true at least once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule(Kind);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Every(i64),
    Fields(Fields),
}

/// Bits of the values that each field allows.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Fields {
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// Whether both kinds of day are restricted: then either is enough, as in every cron.
    either_day: bool,
}

/// What is wrong with a schedule.
#[derive(Debug, PartialEq, Eq)]
pub struct Malformed(String);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Malformed {}

impl Schedule {
    /// Reads a schedule: `MINUTE HOUR DAY MONTH WEEKDAY`, `@yearly`, `@monthly`, `@weekly`, `@daily`, `@hourly`
    /// or `@every DURATION` in whole seconds.
    ///
    /// # Errors
    /// What is wrong, for people.
    pub fn parse(text: &str) -> Result<Self, Malformed> {
        let malformed = |why: String| Malformed(format!("schedule {text:?}: {why}"));
        let text = text.trim();
        if let Some(period) = text.strip_prefix("@every ") {
            return period_of(period.trim()).map(|seconds| Self(Kind::Every(seconds))).map_err(malformed);
        }
        let fields = match text {
            "@yearly" | "@annually" => "0 0 1 1 *",
            "@monthly" => "0 0 1 * *",
            "@weekly" => "0 0 * * 0",
            "@daily" | "@midnight" => "0 0 * * *",
            "@hourly" => "0 * * * *",
            other if other.starts_with('@') => {
                return Err(malformed("is none of @yearly, @monthly, @weekly, @daily, @hourly and @every".into()));
            }
            other => other,
        };
        let schedule = Self(Kind::Fields(Fields::parse(fields).map_err(malformed)?));
        match schedule.next(0, 0) {
            Some(_) => Ok(schedule),
            None => Err(malformed("names a date that never comes".into())),
        }
    }

    /// The first time after `after` at which it comes true, in seconds since 1970; periods count from `start`.
    /// `None` only when that lies beyond all dates that can be written.
    pub fn next(&self, after: i64, start: i64) -> Option<i64> {
        match &self.0 {
            Kind::Every(period) => {
                let passed = after.checked_sub(start)?.div_euclid(*period).max(0);
                start.checked_add(passed.checked_add(1)?.checked_mul(*period)?)
            }
            Kind::Fields(fields) => fields.next(after),
        }
    }
}

impl Fields {
    fn parse(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split_ascii_whitespace().collect();
        let [minutes, hours, days, months, weekdays] = parts.as_slice() else {
            return Err(format!("has {} fields; cron has five: minute, hour, day, month, weekday", parts.len()));
        };
        let open = |field: &str| matches!(field.split('/').next(), Some("*" | "?"));
        let mut fields = Self {
            minutes: bits(minutes, "minute", 0, 59, &[])?,
            hours: bits(hours, "hour", 0, 23, &[])?,
            days: bits(days, "day", 1, 31, &[])?,
            months: bits(months, "month", 1, 12, &MONTHS)?,
            weekdays: bits(weekdays, "weekday", 0, 7, &WEEKDAYS)?,
            either_day: !open(days) && !open(weekdays),
        };
        // Seven is Sunday, too.
        fields.weekdays |= fields.weekdays >> 7 & 1;
        Ok(fields)
    }

    fn next(&self, after: i64) -> Option<i64> {
        let mut time = after.checked_sub(after.rem_euclid(MINUTE))?.checked_add(MINUTE)?;
        let end = time.checked_add(HORIZON)?;
        while time < end {
            let day = time.div_euclid(DAY);
            let date = Date::of(day);
            if self.months >> date.month & 1 == 0 {
                time = (day + date.days_left()) * DAY;
            } else if !self.allows_day(day, &date) {
                time = (day + 1) * DAY;
            } else if self.hours >> (time.rem_euclid(DAY) / HOUR) & 1 == 0 {
                time = time - time.rem_euclid(HOUR) + HOUR;
            } else if self.minutes >> (time.rem_euclid(HOUR) / MINUTE) & 1 == 0 {
                time += MINUTE;
            } else {
                return Some(time);
            }
        }
        None
    }

    fn allows_day(&self, day: i64, date: &Date) -> bool {
        let in_month = self.days >> date.day & 1 == 1;
        // The first of January 1970 was a Thursday.
        let in_week = self.weekdays >> (day + 4).rem_euclid(7) & 1 == 1;
        if self.either_day { in_month || in_week } else { in_month && in_week }
    }
}

/// The bits of a field: a list of values, ranges and steps.
fn bits(field: &str, what: &str, least: u32, most: u32, names: &[&str]) -> Result<u64, String> {
    let mut bits = 0;
    for item in field.split(',') {
        let wrong = || format!("{what} {item:?} is not like *, 5, 1-5 or */15 with values from {least} to {most}");
        let number = |text: &str| {
            let named = names.iter().position(|name| text.eq_ignore_ascii_case(name)).map(|at| at as u32);
            let value = named.map(|at| if what == "month" { at + 1 } else { at });
            let digits = || text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten();
            value.or_else(digits).filter(|value| (least..=most).contains(value)).ok_or_else(wrong)
        };
        let (range, step) = match item.split_once('/') {
            Some((range, step)) => (range, Some(step)),
            None => (item, None),
        };
        let step = match step {
            None => 1,
            Some(step) if !step.is_empty() && step.bytes().all(|byte| byte.is_ascii_digit()) => {
                step.parse::<u32>().ok().filter(|step| *step > 0).ok_or_else(wrong)?
            }
            Some(_) => return Err(wrong()),
        };
        let (first, last) = match (range, range.split_once('-')) {
            ("*" | "?", _) => (least, most),
            (_, Some((first, last))) => (number(first)?, number(last)?),
            // A step from one value goes on to the end, as in every cron.
            (single, None) if item.contains('/') => (number(single)?, most),
            (single, None) => (number(single)?, number(single)?),
        };
        if first > last {
            return Err(format!("{what} {item:?}: the range goes backwards"));
        }
        let mut value = u64::from(first);
        while value <= u64::from(last) {
            bits |= 1 << value;
            value += u64::from(step);
        }
    }
    Ok(bits)
}

/// Whole seconds of a duration as Go writes it: `90s`, `1h30m`.
fn period_of(text: &str) -> Result<i64, String> {
    let wrong = || format!("period {text:?} is not whole seconds from 1s to a year, like 90s or 1h30m");
    let mut rest = text;
    let mut seconds = 0i64;
    while !rest.is_empty() {
        let end = rest.find(|letter: char| !letter.is_ascii_digit()).filter(|end| *end > 0).ok_or_else(wrong)?;
        let (number, after) = rest.split_at(end);
        let unit = after.chars().next().ok_or_else(wrong)?;
        let factor = match unit {
            's' => 1,
            'm' if !after.starts_with("ms") => MINUTE,
            'h' => HOUR,
            _ => return Err(wrong()),
        };
        let number: i64 = number.parse().map_err(|_| wrong())?;
        seconds = number.checked_mul(factor).and_then(|more| seconds.checked_add(more)).ok_or_else(wrong)?;
        rest = &after[1..];
    }
    if (1..=MAX_PERIOD).contains(&seconds) { Ok(seconds) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::{DAY, Date, Fields, Kind, MINUTE, Schedule};

    /// 2024-02-28 23:30:00, a Wednesday before a leap day.
    const THEN: i64 = 1_709_163_000;

    #[track_caller]
    fn after(schedule: &str, seconds: i64) {
        let next = Schedule::parse(schedule).expect("a schedule").next(THEN, THEN).expect("a time");
        assert_eq!(next - THEN, seconds, "{schedule}");
    }

    #[test]
    fn forms_come_true_when_cron_says() {
        after("* * * * *", 60);
        after("*/15 * * * *", 15 * MINUTE);
        after("0 0 29 2 *", 30 * MINUTE);
        after("0 0 1 3 ?", DAY + 30 * MINUTE);
        after("@hourly", 30 * MINUTE);
        after("@daily", 30 * MINUTE);
        after("@every 90s", 90);
        after("@every 1h30m", 5400);
        after("0 0 * * sun", 3 * DAY + 30 * MINUTE);
        after("0 0 * * 7", 3 * DAY + 30 * MINUTE);
        after("5/20 1,2 * feb-MAR mon-fri", 95 * MINUTE);
        // `*/7` is open, so both kinds of day must fit.
        after("0 0 29 2 */7", 2922 * DAY + 30 * MINUTE);
        // Either kind of day is enough when both are named.
        after("0 0 13 * fri", DAY + 30 * MINUTE);
    }

    #[test]
    fn a_leap_day_on_a_sunday_comes_again_after_28_and_after_40_years() {
        let schedule = Schedule::parse("0 0 29 2 */7").expect("a schedule");
        let mut day = 0;
        let years: Vec<i64> = std::iter::from_fn(|| {
            day = schedule.next(day * DAY, 0)? / DAY;
            Some(Date::of(day).year)
        })
        .take(6)
        .collect();
        assert_eq!(years, [1976, 2004, 2032, 2060, 2088, 2128]);
    }

    #[test]
    fn mistakes_are_named() {
        for (schedule, word) in [
            ("", "0 fields"),
            ("* * * *", "4 fields"),
            ("60 * * * *", "minute"),
            ("* 24 * * *", "hour"),
            ("* * 0 * *", "day"),
            ("* * * 13 *", "month"),
            ("* * * * 8", "weekday"),
            ("5-1 * * * *", "backwards"),
            ("*/0 * * * *", "minute"),
            ("+1 * * * *", "minute"),
            ("0 0 30 2 *", "never"),
            ("@sometimes", "@every"),
            ("@every 0s", "whole seconds"),
            ("@every 500ms", "whole seconds"),
            ("@every 1.5s", "whole seconds"),
            ("@every 99999999999999999999s", "whole seconds"),
            ("@every", "@every"),
        ] {
            let why = Schedule::parse(schedule).expect_err(schedule).to_string();
            assert!(why.contains(word), "{schedule}: {why}");
        }
    }

    #[test]
    fn dates_are_the_calendars() {
        let mut day = 0;
        for (year, length) in [(1970, 365), (1971, 365), (1972, 366), (1973, 365)] {
            for of_year in 0..length {
                let date = Date::of(day);
                assert_eq!(date.year, year, "day {of_year} of {year}");
                let next = Date::of(day + date.days_left());
                assert_eq!((next.day, next.month), (1, date.month % 12 + 1));
                day += 1;
            }
        }
        let leap = Date::of(19_782);
        assert_eq!((leap.year, leap.month, leap.day), (2024, 2, 29));
        assert_eq!(Date::of(-1).year, 1969);
    }

    /// Generated schedules against a walk from minute to minute.
    #[test]
    fn the_next_time_is_the_first_that_matches() {
        let mut row = 1u64;
        let mut below = |bound: u64| {
            row = row.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (row >> 33) % bound
        };
        let mut compared = 0;
        for _ in 0..400 {
            let mut field = |least: u64, most: u64| match below(6) {
                0 => "*".to_owned(),
                1 => format!("*/{}", 1 + below(most)),
                2 => {
                    let first = least + below(most - least + 1);
                    format!("{first}-{}", first + below(most - first + 1))
                }
                3 => format!("{}/{}", least + below(most - least + 1), 1 + below(9)),
                _ => format!("{},{}", least + below(most - least + 1), least + below(most - least + 1)),
            };
            let text = format!("{} {} {} * {}", field(0, 59), field(0, 23), field(1, 31), field(0, 7));
            let schedule = Schedule::parse(&text).expect("a schedule");
            let Kind::Fields(fields) = &schedule.0 else { panic!("fields") };
            let start = THEN + below(1 << 30) as i64;
            let next = schedule.next(start, 0).expect("a time");
            assert!(next > start && next % MINUTE == 0 && matches(fields, next), "{text}");
            let mut time = start - start % MINUTE + MINUTE;
            while time < next {
                assert!(!matches(fields, time), "{text} at {time}, before {next}");
                time += MINUTE;
                compared += 1;
            }
        }
        assert!(compared > 100_000, "{compared} minutes prove little");
    }

    fn matches(fields: &Fields, time: i64) -> bool {
        let date = Date::of(time.div_euclid(DAY));
        let weekday = (time.div_euclid(DAY) + 4) % 7;
        let (days, weekdays) = (fields.days >> date.day & 1 == 1, fields.weekdays >> weekday & 1 == 1);
        fields.minutes >> (time / MINUTE % 60) & 1 == 1
            && fields.hours >> (time / 3600 % 24) & 1 == 1
            && fields.months >> date.month & 1 == 1
            && if fields.either_day { days || weekdays } else { days && weekdays }
    }
}
