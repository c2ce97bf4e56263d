//! Local date and time.

/// Year, month and day, both from 1, in the machine's time zone; `None` if its clock has no date of the
/// calendar.
pub fn today() -> Option<(u16, u8, u8)> {
    date_of(&now()?)
}

fn date_of(now: &libc::tm) -> Option<(u16, u8, u8)> {
    let year = u16::try_from(now.tm_year + 1900).ok()?;
    Some((year, u8::try_from(now.tm_mon + 1).ok()?, u8::try_from(now.tm_mday).ok()?))
}

/// Date and time as `2026-01-31 23:59:59`, in the machine's time zone; `None` as for [`today`].
pub fn stamp() -> Option<String> {
    let now = now()?;
    let (year, month, day) = date_of(&now)?;
    let libc::tm { tm_hour, tm_min, tm_sec, .. } = now;
    Some(format!("{year:04}-{month:02}-{day:02} {tm_hour:02}:{tm_min:02}:{tm_sec:02}"))
}

fn now() -> Option<libc::tm> {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).ok()?;
    // The conversion is to the type that the system call takes, which has several names.
    let seconds = since.as_secs().try_into().ok()?;
    // SAFETY: `tm` is integers and a pointer that may be null, for which zeros are values.
    let mut date: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both point to values that live until the call returns; nothing changes the
    // environment's time zone meanwhile.
    let filled = unsafe { libc::localtime_r(&raw const seconds, &raw mut date) };
    (!filled.is_null()).then_some(date)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_stamp_is_a_date_and_a_time() {
        let stamp = super::stamp().unwrap();
        let shape: String =
            stamp.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
        assert_eq!(shape, "0000-00-00 00:00:00");
    }

    #[test]
    fn date_is_one_of_a_calendar() {
        let (year, month, day) = super::today().unwrap();
        assert!(
            (2020..=9999).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day)
        );
    }
}
