//! What a stored row means for a request that arrives.

use crate::status::Status;

/// The facts of a stored row that decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    pub status: Status,
    /// Its retention has ended. Means nothing while in progress: such a row never expires.
    pub expired: bool,
    /// Its fingerprint is that of the arriving request.
    pub same_request: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// No row: insert one.
    First,
    /// A tombstone, or a finished row whose retention has ended: a first request, in its place.
    TakeOver,
    InProgress,
    KeyReused,
    Replay,
}

/// The request is compared before anything else about a row that still counts: a wrong one never learns more.
pub fn judge(stored: Option<Facts>) -> Verdict {
    match stored {
        None => Verdict::First,
        Some(Facts { status: Status::Released, .. }) => Verdict::TakeOver,
        Some(Facts { status, expired: true, .. }) if status.is_finished() => Verdict::TakeOver,
        Some(Facts { same_request: false, .. }) => Verdict::KeyReused,
        Some(Facts { status: Status::InProgress, .. }) => Verdict::InProgress,
        Some(_) => Verdict::Replay,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Status::*;

    #[test]
    fn every_combination() {
        assert_eq!(judge(None), Verdict::First);
        let judge = |status, expired, same_request| judge(Some(Facts { status, expired, same_request }));
        for same_request in [false, true] {
            for expired in [false, true] {
                assert_eq!(judge(Released, expired, same_request), Verdict::TakeOver);
                let open = if same_request { Verdict::InProgress } else { Verdict::KeyReused };
                assert_eq!(judge(InProgress, expired, same_request), open);
            }
            for finished in [Succeeded, Failed] {
                assert_eq!(judge(finished, true, same_request), Verdict::TakeOver);
                let kept = if same_request { Verdict::Replay } else { Verdict::KeyReused };
                assert_eq!(judge(finished, false, same_request), kept);
            }
        }
    }
}
