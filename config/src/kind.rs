//! [`Kind`]: the types of values, in documents and in flags.

use serde_json::{Value, json};

use crate::{duration::GoDuration, quantity};

/// The type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `true` or `false`. A flag without a value is `true`.
    Bool,
    /// An integer of 32 bits.
    Int,
    /// An integer of 32 bits without a sign.
    Unsigned,
    /// A number.
    Float,
    /// A string.
    Text,
    /// A path.
    Path,
    /// A duration, such as 30s.
    Duration,
    /// A size, such as 4Ki.
    Size,
    /// An IP address. In a flag, an empty string keeps the default.
    Ip,
    /// `IP` or `IP:port`. In a flag, an empty string keeps the default.
    IpPort,
    /// Strings. In a flag, commas separate them, and a repeated flag adds more strings.
    List,
    /// Names, each with true or false. In a flag, they have the form `name=true`, and commas separate them.
    Gates,
    /// Patterns, each with a verbosity. In a flag, they have the form `pattern=N`, and commas separate them.
    VModule,
}

/// A path inside a value, the problem there, and the remedy.
type Wrong = (String, String, &'static str);

impl Kind {
    /// The zero value of this type: 0, false, or an empty string, list or map.
    pub(crate) fn zero(self) -> Value {
        match self {
            Self::Bool => json!(false),
            Self::Int | Self::Unsigned => json!(0),
            Self::Float => json!(0.0),
            Self::Text | Self::Path | Self::Ip | Self::IpPort => json!(""),
            Self::Duration => json!("0s"),
            Self::Size => json!("0"),
            Self::List | Self::VModule => json!([]),
            Self::Gates => json!({}),
        }
    }

    /// Returns the value, or the zero value of this type for null.
    pub(crate) fn or_zero(self, value: Value) -> Value {
        if value.is_null() { self.zero() } else { value }
    }

    /// Parses the text of a default in the table.
    pub(crate) fn value(self, text: &str) -> Value {
        match self.zero() {
            Value::String(_) => json!(text),
            _ => serde_json::from_str(text).unwrap_or_default(),
        }
    }

    /// Returns a value of this type in its normal form: `1m30s` for `90s`, `4096` for `4Ki`.
    ///
    /// # Errors
    /// Returns an error if the value is out of range or does not have the notation of its type.
    pub(crate) fn normal(self, value: &Value) -> Result<Value, Wrong> {
        let wrong = |problem: &str, remedy| (String::new(), problem.to_owned(), remedy);
        let in_range = |is_in_range: bool| {
            let error = || wrong(&format!("{value} is out of range"), "use a number that is closer to zero");
            is_in_range.then(|| value.clone()).ok_or_else(error)
        };
        match (self, value) {
            (Self::Int, _) => in_range(value.as_i64().is_some_and(|number| i32::try_from(number).is_ok())),
            (Self::Unsigned, _) => in_range(value.as_u64().is_some_and(|number| u32::try_from(number).is_ok())),
            (Self::Float, _) => Ok(json!(value.as_f64())),
            (Self::Duration, Value::String(text)) => {
                let error = |_| wrong(&format!("{text:?} is not a duration"), "write it like 30s, 1h30m or 250ms");
                Ok(json!(text.parse::<GoDuration>().map_err(error)?.to_string()))
            }
            (Self::Duration, _) => {
                let error = || wrong("is too large or small for a duration in nanoseconds", "write it like 5s");
                Ok(json!(GoDuration::from_nanos(value.as_i64().ok_or_else(error)?).to_string()))
            }
            (Self::Size, _) => {
                let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                let error = || wrong(&format!("{text:?} is not a size"), "write it like 512, 1k or 4Ki");
                Ok(json!(quantity::parse(&text).ok_or_else(error)?.to_string()))
            }
            (Self::VModule, Value::Array(items)) => {
                items.iter().enumerate().map(|(position, item)| item_of_vmodule(position, item)).collect()
            }
            _ => Ok(value.clone()),
        }
    }
}

fn item_of_vmodule(position: usize, item: &Value) -> Result<Value, Wrong> {
    let verbosity = Kind::Unsigned.normal(item.get("verbosity").unwrap_or(&json!(0)));
    let verbosity = verbosity.map_err(|(_, problem, remedy)| (format!("[{position}].verbosity"), problem, remedy))?;
    Ok(json!({"filePattern": item.get("filePattern").unwrap_or(&json!("")), "verbosity": verbosity}))
}
