//! Dates in the formats of chat templates.

/// A day of the Gregorian calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Date {
    year: u16,
    month: u8,
    day: u8,
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

impl Date {
    /// The date, for years 1 to 9999; months and days count from 1. `None` if there is no such day.
    pub fn new(year: u16, month: u8, day: u8) -> Option<Date> {
        let is_leap =
            year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
        let days = match month {
            2 if is_leap => 29,
            2 => 28,
            4 | 6 | 9 | 11 => 30,
            1..=12 => 31,
            _ => return None,
        };
        let is_day = (1..=9999).contains(&year) && (1..=days).contains(&day);
        is_day.then_some(Date { year, month, day })
    }

    /// The date at the beginning of an ISO 8601 text: `2026-03-09`, alone or with a time.
    pub fn from_iso(text: &str) -> Option<Date> {
        let (date, time) = text.split_at_checked(10)?;
        let mut parts = date.split('-');
        let mut part = |len| {
            let part = parts.next().filter(|part| part.len() == len)?;
            part.bytes()
                .all(|byte| byte.is_ascii_digit())
                .then(|| part.parse::<u16>().ok())
                .flatten()
        };
        let (year, month, day) = (part(4)?, part(2)?, part(2)?);
        let is_alone = time.is_empty() || time.starts_with(['T', ' ']);
        is_alone.then(|| Date::new(year, month.try_into().ok()?, day.try_into().ok()?)).flatten()
    }

    /// The date in strftime's `format` in the C locale; `None` if `format` needs more than day, month and
    /// year.
    pub fn format(self, format: &str) -> Option<String> {
        let mut out = String::new();
        let month = MONTHS[usize::from(self.month) - 1];
        let mut rest = format.chars();
        while let Some(c) = rest.next() {
            match c {
                '%' => match rest.next()? {
                    'd' => out.push_str(&format!("{:02}", self.day)),
                    'm' => out.push_str(&format!("{:02}", self.month)),
                    'Y' => out.push_str(&format!("{:04}", self.year)),
                    'B' => out.push_str(month),
                    'b' => out.push_str(&month[..3]),
                    _ => return None,
                },
                c => out.push(c),
            }
        }
        Some(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_printed_as_templates_ask() {
        let date = Date::from_iso("2026-03-09T12:00:00").unwrap();
        assert_eq!(
            date.format("%d %B %Y, %Y-%m-%d, %d %b").unwrap(),
            "09 March 2026, 2026-03-09, 09 Mar"
        );
        assert_eq!(date.format("%H"), None);
    }

    #[test]
    fn days_that_are_none_are_refused() {
        assert!(Date::from_iso("2024-02-29").is_some());
        for bad in [
            "2023-02-29",
            "2026-13-01",
            "2026-00-01",
            "2026-3-9",
            "+026-03-09",
            "",
            "2026-03-0é",
            "2026-03-091",
        ] {
            assert_eq!(Date::from_iso(bad), None, "{bad}");
        }
    }
}
