//! Response headers: an ordered list of `[name, value]` pairs, repeated names included.

use crate::refusal::Refusal;
use serde_json::Value;

/// Headers as they will be stored.
#[derive(Debug, PartialEq)]
pub enum Headers {
    /// JSON null: none.
    None,
    /// Already an array of pairs, none of which is left out: to be stored as it came.
    AsGiven,
    /// These pairs.
    Pairs(Value),
}

/// Headers that say how one message is framed or one connection used (RFC 9110, section 7.6.1): stored, they would frame
/// the replay wrongly, whose server writes its own.
const OF_THE_CONNECTION: [&str; 8] =
    ["connection", "content-length", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"];

/// Accepts an array of `[name, value]` pairs of strings, an object whose values are strings, numbers or arrays of
/// strings, or null.
///
/// `22023` for anything else, and for a name or value that cannot be sent as a header field (RFC 9110, section 5:
/// a name is a token, a value has no control characters but tabs): stored, it could only fail, or split a response, at
/// replay.
pub fn check(json: &[u8]) -> Result<Headers, Refusal> {
    let headers: Value =
        serde_json::from_slice(json).map_err(|_| malformed("The document has a depth that no header has.".into()))?;
    let (given, is_array) = match &headers {
        Value::Null => return Ok(Headers::None),
        Value::Array(pairs) => (pairs.len(), true),
        Value::Object(_) => (0, false),
        _ => return Err(malformed("The document is neither an array nor an object.".into())),
    };
    let pairs = match &headers {
        Value::Array(pairs) => of_array(pairs)?,
        Value::Object(fields) => of_object(fields)?,
        _ => Vec::new(),
    };
    let mut kept = Vec::with_capacity(pairs.len());
    for (name, value) in &pairs {
        check_field(name, value)?;
        if !OF_THE_CONNECTION.iter().any(|left_out| name.eq_ignore_ascii_case(left_out)) {
            kept.push(Value::from(vec![name.as_str(), value.as_str()]));
        }
    }
    Ok(if is_array && kept.len() == given { Headers::AsGiven } else { Headers::Pairs(Value::Array(kept)) })
}

fn of_array(pairs: &[Value]) -> Result<Vec<(String, String)>, Refusal> {
    let pair = |(i, pair): (usize, &Value)| match pair.as_array().map(Vec::as_slice) {
        Some([Value::String(name), Value::String(value)]) => Ok((name.clone(), value.clone())),
        _ => Err(malformed(format!("Element {} is not a pair of strings.", i + 1))),
    };
    pairs.iter().enumerate().map(pair).collect()
}

/// In the order of the names, since an object of jsonb has no other.
fn of_object(fields: &serde_json::Map<String, Value>) -> Result<Vec<(String, String)>, Refusal> {
    let mut pairs = Vec::with_capacity(fields.len());
    for (name, value) in fields {
        let values = match value {
            Value::Array(values) => values.as_slice(),
            value => std::slice::from_ref(value),
        };
        for single in values {
            match single {
                Value::String(text) => pairs.push((name.clone(), text.clone())),
                Value::Number(number) if !value.is_array() => pairs.push((name.clone(), number.to_string())),
                _ => return Err(malformed("A member of the object is no string, number or array of strings.".into())),
            }
        }
    }
    Ok(pairs)
}

fn malformed(detail: String) -> Refusal {
    Refusal::invalid(
        "response_headers must be an array of [name, value] pairs, or an object of strings or arrays of strings",
        detail,
        r#"For example '[["content-type", "application/json"], ["set-cookie", "a=1"], ["set-cookie", "b=2"]]'."#,
    )
}

/// The values are not shown: a header may carry a secret.
fn check_field(name: &str, value: &str) -> Result<(), Refusal> {
    let is_token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    if name.is_empty() || !name.bytes().all(is_token) {
        return Err(Refusal::invalid(
            "response_headers has a name that is no HTTP field name",
            "A field name is one or more letters, digits or the characters !#$%&'*+-.^_`|~ (RFC 9110).",
            "Pass header fields only, not a status line or pseudo-headers.",
        ));
    }
    if value.bytes().any(|b| b.is_ascii_control() && b != b'\t') {
        return Err(Refusal::invalid(
            format!("response_headers has a control character in the value of {name:?}"),
            "CR, LF, NUL and the other control characters but tabs cannot be part of a header value (RFC 9110).",
            "Remove it: replayed, a line break would split the response.",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn pairs_stay_as_given() {
        for headers in [json!([]), json!([["Set-Cookie", "a=1, b"], ["Set-Cookie", ""]])] {
            assert_eq!(check(headers.to_string().as_bytes()).unwrap(), Headers::AsGiven);
        }
    }

    #[test]
    fn an_object_becomes_pairs() {
        let stored =
            check(br#"{"b": "2", "a": "1", "set-cookie": ["x=1, y", "z=2"], "age": 100.50, "none": []}"#).unwrap();
        let pairs = json!([["a", "1"], ["age", "100.50"], ["b", "2"], ["set-cookie", "x=1, y"], ["set-cookie", "z=2"]]);
        assert_eq!(stored, Headers::Pairs(pairs));
        assert_eq!(check(b"{}").unwrap(), Headers::Pairs(json!([])));
        assert_eq!(check(b"null").unwrap(), Headers::None);
    }

    #[test]
    fn what_frames_a_message_is_left_out() {
        for name in OF_THE_CONNECTION {
            for name in [name.to_owned(), name.to_uppercase()] {
                let stored = check(json!([["a", "1"], [name, "x"]]).to_string().as_bytes()).unwrap();
                assert_eq!(stored, Headers::Pairs(json!([["a", "1"]])), "{name}");
                let stored = check(json!({ &name: 5 }).to_string().as_bytes()).unwrap();
                assert_eq!(stored, Headers::Pairs(json!([])), "{name}");
            }
        }
    }

    #[test]
    fn everything_else_is_refused() {
        for bad in [
            json!("a: b"),
            json!(1),
            json!(["a", "b"]),
            json!([["a"]]),
            json!([["a", "b", "c"]]),
            json!([["a", 1]]),
            json!([[1, "a"]]),
            json!({"a": true}),
            json!({"a": null}),
            json!({"a": {"b": "c"}}),
            json!({"a": ["b", 1]}),
            json!({"a": [["b"]]}),
            json!({"": "x"}),
            json!([["a b", "x"]]),
            json!([["a:", "x"]]),
            json!([["a", "x\r\nSet-Cookie: y"]]),
            json!([["content-length", "5\r\n"]]),
            json!([["a\n", "x"]]),
            json!([["a", "\u{7}"]]),
        ] {
            let refusal = check(bad.to_string().as_bytes()).expect_err(&bad.to_string());
            assert_eq!(refusal.sqlstate, crate::refusal::INVALID_PARAMETER_VALUE);
            assert!(!refusal.hint.is_empty() && !refusal.detail.is_empty());
        }
    }

    #[test]
    fn what_serde_json_does_not_read_is_refused_too() {
        let deep = format!("{}{}", "[".repeat(1_000), "]".repeat(1_000));
        assert!(check(deep.as_bytes()).is_err());
    }

    #[test]
    fn a_refusal_shows_no_value() {
        let refusal = check(br#"[["authorization", "secret\n"]]"#).unwrap_err();
        assert!(!format!("{refusal:?}").contains("secret"));
    }
}
