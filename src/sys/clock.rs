//! The date where the machine stands.

/// Year, month and day, both from 1, in the machine's time zone; `None` if its clock says nothing
/// that a calendar has.
pub fn today() -> Option<(u16, u8, u8)> {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).ok()?;
    // Of whatever type the system call takes, which has several names.
    let seconds = since.as_secs().try_into().ok()?;
    // SAFETY: `tm` is integers and a pointer that may be null, for which zeros are values.
    let mut date: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both point to values that live until the call returns; nothing changes the
    // environment's time zone meanwhile.
    let filled = unsafe { libc::localtime_r(&raw const seconds, &raw mut date) };
    if filled.is_null() {
        return None;
    }
    let year = u16::try_from(date.tm_year + 1900).ok()?;
    Some((year, u8::try_from(date.tm_mon + 1).ok()?, u8::try_from(date.tm_mday).ok()?))
}

#[cfg(test)]
mod tests {
    #[test]
    fn date_is_one_of_a_calendar() {
        let (year, month, day) = super::today().unwrap();
        assert!(
            (2020..=9999).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day)
        );
    }
}
