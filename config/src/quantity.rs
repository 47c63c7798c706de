//! Sizes in the notation of Kubernetes: `512`, `1k`, `4Ki`, `1.5Mi`, `1e3`.

/// Parses a number of bytes, which may be negative. As in kube-proxy, a fraction is rounded up.
pub(crate) fn parse(text: &str) -> Option<i64> {
    let (negative, rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let end = rest.find(|character: char| !character.is_ascii_digit() && character != '.').unwrap_or(rest.len());
    let (number, suffix) = rest.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') || number.len() > 30 {
        return None;
    }
    let mut digits: i128 = format!("{whole}{fraction}").parse().ok()?;
    let (factor, mut exponent) = unit(suffix)?;
    digits = digits.checked_mul(factor)?;
    exponent -= i32::try_from(fraction.len()).ok()?;
    let power = 10_i128.checked_pow(exponent.unsigned_abs())?;
    let value = if exponent >= 0 {
        digits.checked_mul(power)?
    } else {
        let up = !negative && digits % power != 0;
        digits / power + i128::from(up)
    };
    i64::try_from(if negative { -value } else { value }).ok()
}

/// Returns the multiplier that a suffix means, as a factor and an exponent of ten.
fn unit(suffix: &str) -> Option<(i128, i32)> {
    let position =
        |names: &[&str]| (0_i32..).zip(names).find(|(_, name)| **name == suffix).map(|(position, _)| position);
    if let Some(position) = position(&["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"]) {
        return Some((1 << (10 * (position + 1)), 0));
    }
    if let Some(position) = position(&["n", "u", "m", "", "k", "M", "G", "T", "P", "E"]) {
        return Some((1, 3 * (position - 3)));
    }
    let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    (exponent.abs() <= 30).then_some((1, exponent))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes_are_read() {
        for (text, bytes) in [
            ("0", Some(0)),
            ("512", Some(512)),
            ("1K", None),
            ("1k", Some(1_000)),
            ("4Ki", Some(4_096)),
            ("1.5Mi", Some(3 << 19)),
            ("3M", Some(3_000_000)),
            ("1e3", Some(1_000)),
            ("1E3", Some(1_000)),
            ("7E", Some(7_000_000_000_000_000_000)),
            ("100m", Some(1)),
            ("-100m", Some(0)),
            ("-1Ki", Some(-1_024)),
            ("+.5k", Some(500)),
            ("", None),
            ("-", None),
            (".", None),
            ("Ki", None),
            ("1 Ki", None),
            ("1kb", None),
            ("1.2.3", None),
            ("10E", None),
            ("1e99", None),
            ("1ee", None),
            ("9999999999999999999999999999999999999999", None),
        ] {
            assert_eq!(parse(text), bytes, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_parses(text in "[-+0-9.eEkKMGi]{0,40}|.*") {
            let _ = parse(&text);
        }

        #[test]
        fn written_documents_parse_to_the_same_values(bytes: i64) {
            prop_assert_eq!(parse(&bytes.to_string()), Some(bytes));
        }
    }
}
