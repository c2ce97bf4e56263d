//! `keep_alive`: how long a model stays loaded after its last answer, in Ollama's words.

use std::time::Duration;

use serde_json::Value;

use super::error::ApiError;
use super::fields::Fields;

/// Ollama's default.
const DEFAULT: Duration = Duration::from_secs(5 * 60);

/// Units of a duration, in seconds. Those that end like others come first.
const UNITS: [(&str, f64); 8] = [
    ("ns", 1e-9),
    ("us", 1e-6),
    ("µs", 1e-6),
    ("μs", 1e-6),
    ("ms", 1e-3),
    ("s", 1.0),
    ("m", 60.0),
    ("h", 3600.0),
];

/// How long a model stays loaded after its last answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeepAlive {
    For(Duration),
    Forever,
}

impl Default for KeepAlive {
    fn default() -> KeepAlive {
        KeepAlive::For(DEFAULT)
    }
}

impl KeepAlive {
    /// Reads the field `keep_alive`: seconds, or a duration as `1h30m`; below 0 is for ever.
    pub(super) fn read(fields: &Fields<'_>) -> Result<Option<KeepAlive>, ApiError> {
        let seconds = match fields.get("keep_alive") {
            None => return Ok(None),
            Some(Value::Number(number)) => number.as_f64(),
            Some(Value::String(text)) => seconds(text),
            Some(_) => None,
        };
        let seconds = seconds.ok_or_else(|| {
            fields.bad("keep_alive", "is neither a number of seconds nor a duration such as 5m")
        })?;
        Ok(Some(match Duration::try_from_secs_f64(seconds) {
            Ok(time) => KeepAlive::For(time),
            // Below 0, or longer than any server runs.
            Err(_) => KeepAlive::Forever,
        }))
    }

    /// Whether the model is dropped with its last answer.
    pub(super) fn is_zero(self) -> bool {
        self == KeepAlive::For(Duration::ZERO)
    }
}

/// Seconds of a duration such as `1h30m`, `-1s` or `300`.
fn seconds(text: &str) -> Option<f64> {
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text.strip_prefix('+').unwrap_or(text)),
    };
    let number = |digits: &str| {
        let is_number = digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        digits.parse::<f64>().ok().filter(|_| is_number)
    };
    if rest.is_empty() {
        return None;
    }
    if let Some(seconds) = number(rest) {
        return Some(sign * seconds);
    }
    let mut sum = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (value, behind) = rest.split_at(digits);
        let (unit, factor) = UNITS.iter().find(|(unit, _)| behind.starts_with(unit))?;
        sum += number(value)? * factor;
        rest = &behind[unit.len()..];
    }
    Some(sign * sum)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: Value) -> Option<KeepAlive> {
        let body = json!({"keep_alive": value});
        KeepAlive::read(&Fields::of(&body, "").unwrap()).unwrap()
    }

    #[test]
    fn durations_are_read_as_ollama_reads_them() {
        let of = |seconds: f64| Some(KeepAlive::For(Duration::from_secs_f64(seconds)));
        for (value, wanted) in [
            (json!("5m"), of(300.0)),
            (json!("1h30m"), of(5400.0)),
            (json!("1.5h"), of(5400.0)),
            (json!("250ms"), of(0.25)),
            (json!("2m5s"), of(125.0)),
            (json!(10), of(10.0)),
            (json!(0.5), of(0.5)),
            (json!("30"), of(30.0)),
            (json!(0), of(0.0)),
            (json!("0"), of(0.0)),
            (json!("0s"), of(0.0)),
            (json!(-1), Some(KeepAlive::Forever)),
            (json!("-1m"), Some(KeepAlive::Forever)),
            (json!("99999999999999999999h"), Some(KeepAlive::Forever)),
            (Value::Null, None),
        ] {
            assert_eq!(read(value.clone()), wanted, "{value}");
        }
        assert!(read(json!("0m")).unwrap().is_zero() && !read(json!(-1)).unwrap().is_zero());
    }

    #[test]
    fn other_values_are_refused() {
        for value in
            [json!(""), json!("m"), json!("5x"), json!("-"), json!("5m3"), json!([]), json!("é")]
        {
            let body = json!({"keep_alive": value});
            let error = KeepAlive::read(&Fields::of(&body, "").unwrap()).unwrap_err();
            assert_eq!(error.field.as_deref(), Some("keep_alive"), "{value}");
        }
    }
}
