//! Days as dates, for what is written in UTC and for schedules.

/// A day of the Gregorian calendar, also before it was in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Date {
    /// Astronomical year: 0 is 1 BC.
    pub year: i64,
    /// 1 to 12.
    pub month: u32,
    /// 1 to 31.
    pub day: u32,
}

impl Date {
    /// The date of a day counted from 1970-01-01, which is day 0.
    pub fn of(day: i64) -> Self {
        // Years that begin in March put the leap day at the end; 400 of them have 146,097 days.
        let shifted = day + 719_468;
        let era = shifted.div_euclid(146_097);
        let of_era = shifted.rem_euclid(146_097);
        let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year + year / 4 - year / 100);
        let from_march = (5 * of_year + 2) / 153;
        let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
        Self {
            year: year + era * 400 + i64::from(month <= 2),
            month: month as u32,
            day: (of_year - (153 * from_march + 2) / 5 + 1) as u32,
        }
    }

    /// Days from this one to the first of the next month.
    pub fn days_left(&self) -> i64 {
        let leap = self.year % 4 == 0 && (self.year % 100 != 0 || self.year % 400 == 0);
        let length = match self.month {
            2 if leap => 29,
            2 => 28,
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        i64::from(length - self.day) + 1
    }
}
