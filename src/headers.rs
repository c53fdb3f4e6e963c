//! Response headers: an ordered list of `[name, value]` pairs, repeated names included.

use crate::refusal::Refusal;
use serde_json::Value;

/// Headers as they will be stored.
#[derive(Debug, PartialEq)]
pub enum Headers {
    /// Already an array of pairs: to be stored as it came.
    AsGiven,
    /// Was an object of strings: these are its pairs, by name, since an object has no order.
    Pairs(Value),
}

/// Accepts an array of `[name, value]` pairs of strings, or an object of strings.
///
/// `22023` for anything else, and for a name or value that cannot be sent as a header field (RFC 9110, section 5:
/// a name is a token, a value has no control characters but tabs): stored, it could only fail, or split a response, at
/// replay.
pub fn check(json: &[u8]) -> Result<Headers, Refusal> {
    let headers = serde_json::from_slice(json)
        .map_err(|_| malformed("The document has a number or a depth that no header has.".into()))?;
    match &headers {
        Value::Array(pairs) => {
            for (i, pair) in pairs.iter().enumerate() {
                match pair.as_array().map(Vec::as_slice) {
                    Some([Value::String(name), Value::String(value)]) => check_field(name, value)?,
                    _ => return Err(malformed(format!("Element {} is not a pair of strings.", i + 1))),
                }
            }
            Ok(Headers::AsGiven)
        }
        Value::Object(fields) => {
            let mut pairs = Vec::with_capacity(fields.len());
            for (name, value) in fields {
                let Value::String(value) = value else {
                    return Err(malformed("A member of the object is not a string.".into()));
                };
                check_field(name, value)?;
                pairs.push(Value::from(vec![name.as_str(), value.as_str()]));
            }
            Ok(Headers::Pairs(Value::Array(pairs)))
        }
        _ => Err(malformed("The document is neither an array nor an object.".into())),
    }
}

fn malformed(detail: String) -> Refusal {
    Refusal::invalid(
        "response_headers must be an array of [name, value] pairs or an object of strings",
        detail,
        r#"For example '[["content-type", "application/json"]]'; a repeated name needs the array form."#,
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
        let stored = check(br#"{"b": "2", "a": "1"}"#).unwrap();
        assert_eq!(stored, Headers::Pairs(json!([["a", "1"], ["b", "2"]])));
        assert_eq!(check(b"{}").unwrap(), Headers::Pairs(json!([])));
    }

    #[test]
    fn everything_else_is_refused() {
        for bad in [
            json!(null),
            json!("a: b"),
            json!(1),
            json!(["a", "b"]),
            json!([["a"]]),
            json!([["a", "b", "c"]]),
            json!([["a", 1]]),
            json!([[1, "a"]]),
            json!({"a": 1}),
            json!({"a": ["b", "c"]}),
            json!({"": "x"}),
            json!([["a b", "x"]]),
            json!([["a:", "x"]]),
            json!([["a", "x\r\nSet-Cookie: y"]]),
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
        for bad in [r#"[["a", 1e400]]"#, &deep] {
            assert!(check(bad.as_bytes()).is_err());
        }
    }

    #[test]
    fn a_refusal_shows_no_value() {
        let refusal = check(br#"[["authorization", "secret\n"]]"#).unwrap_err();
        assert!(!format!("{refusal:?}").contains("secret"));
    }
}
