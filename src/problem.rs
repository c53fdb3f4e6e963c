//! The answers that an adapter can send as they are: problem documents (RFC 9457) with their headers.

use crate::scope::KeyFault;
use serde::Serialize;
use serde_json::json;

/// An outcome of `idem_claim` that is sent to the client without running the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Problem {
    KeyMissing,
    KeyInvalid(KeyFault),
    InProgress,
    KeyReused,
}

/// Members of a problem document, in the order in which they are written. Titles are those of
/// draft-ietf-httpapi-idempotency-key-header.
#[derive(Serialize)]
struct Document<'a> {
    r#type: &'a str,
    title: &'static str,
    status: i32,
    detail: &'static str,
    outcome: &'static str,
}

impl Problem {
    pub fn outcome(self) -> &'static str {
        match self {
            Problem::KeyMissing => "key_missing",
            Problem::KeyInvalid(_) => "key_invalid",
            Problem::InProgress => "in_progress",
            Problem::KeyReused => "key_reused",
        }
    }

    /// The HTTP status.
    pub fn status(self) -> i32 {
        match self {
            Problem::KeyMissing | Problem::KeyInvalid(_) => 400,
            Problem::InProgress => 409,
            Problem::KeyReused => 422,
        }
    }

    /// The document. `docs_url` becomes its `type`; without one it is `about:blank`, as RFC 9457 says.
    pub fn body(self, docs_url: Option<&str>) -> Vec<u8> {
        let (title, detail) = match self {
            Problem::KeyMissing => (
                "Idempotency-Key is missing",
                "This operation requires an Idempotency-Key header. Send a unique key with the first request and \
                 the same key with every retry of it.",
            ),
            Problem::KeyInvalid(KeyFault::TooLong) => {
                ("Idempotency-Key is invalid", "The Idempotency-Key is longer than 255 characters.")
            }
            Problem::KeyInvalid(KeyFault::NotUtf8) => {
                ("Idempotency-Key is invalid", "The Idempotency-Key contains bytes that are not valid text.")
            }
            Problem::KeyInvalid(_) => {
                ("Idempotency-Key is invalid", "The Idempotency-Key contains a control character.")
            }
            Problem::InProgress => (
                "A request is outstanding for this Idempotency-Key",
                "A request with this Idempotency-Key is still being processed. Retry later with the same key.",
            ),
            Problem::KeyReused => (
                "Idempotency-Key is already used",
                "This Idempotency-Key was used with a different request. Send a new key with a new request.",
            ),
        };
        let document = Document {
            r#type: docs_url.filter(|url| !url.is_empty()).unwrap_or("about:blank"),
            title,
            status: self.status(),
            detail,
            outcome: self.outcome(),
        };
        // A struct of strings and a number always serializes.
        serde_json::to_vec(&document).unwrap_or_default()
    }

    /// The headers, as pairs. `retry_after` is in seconds.
    pub fn headers(self, retry_after: i32) -> serde_json::Value {
        let mut headers = vec![json!(["content-type", "application/problem+json"])];
        if self == Problem::InProgress {
            headers.push(json!(["retry-after", retry_after.to_string()]));
        }
        headers.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Problem; 6] = [
        Problem::KeyMissing,
        Problem::KeyInvalid(KeyFault::NotUtf8),
        Problem::KeyInvalid(KeyFault::TooLong),
        Problem::KeyInvalid(KeyFault::ControlCharacter),
        Problem::InProgress,
        Problem::KeyReused,
    ];

    #[test]
    fn documents_are_valid_and_repeat_the_status() {
        for problem in ALL {
            let body: serde_json::Value = serde_json::from_slice(&problem.body(None)).unwrap();
            assert_eq!(body["type"], "about:blank");
            assert_eq!(body["status"], problem.status());
            assert_eq!(body["outcome"], problem.outcome());
            assert!(body["title"].as_str().unwrap().contains("Idempotency-Key"));
            assert!(body["detail"].as_str().unwrap().ends_with('.'));
        }
    }

    #[test]
    fn docs_url_is_the_type_and_is_escaped() {
        let body = Problem::KeyMissing.body(Some(r#"https://x.example/"docs""#));
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body["type"], r#"https://x.example/"docs""#);
    }

    #[test]
    fn only_in_progress_says_when_to_retry() {
        for problem in ALL {
            let headers = problem.headers(7);
            let retry = headers.as_array().unwrap().contains(&json!(["retry-after", "7"]));
            assert_eq!(retry, problem == Problem::InProgress);
        }
    }
}
