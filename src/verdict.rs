//! What a stored row means for a request that arrives.

/// The facts of a stored row that decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// `succeeded` or `failed`, as opposed to `in_progress`.
    pub finished: bool,
    /// Its retention has ended. Means nothing while in progress: such a row never expires.
    pub expired: bool,
    /// Its request hash is that of the arriving request.
    pub same_body: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// No row: insert one.
    First,
    /// A finished row whose retention has ended: a first request, in its place.
    TakeOver,
    InProgress,
    KeyReused,
    Replay,
}

/// The body is compared before anything else about a row that still counts: a wrong body never learns more.
pub fn judge(stored: Option<Facts>) -> Verdict {
    match stored {
        None => Verdict::First,
        Some(Facts { finished: true, expired: true, .. }) => Verdict::TakeOver,
        Some(Facts { same_body: false, .. }) => Verdict::KeyReused,
        Some(Facts { finished: false, .. }) => Verdict::InProgress,
        Some(_) => Verdict::Replay,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_combination() {
        assert_eq!(judge(None), Verdict::First);
        let judge = |finished, expired, same_body| judge(Some(Facts { finished, expired, same_body }));
        assert_eq!(judge(true, false, true), Verdict::Replay);
        assert_eq!(judge(true, false, false), Verdict::KeyReused);
        assert_eq!(judge(true, true, true), Verdict::TakeOver);
        assert_eq!(judge(true, true, false), Verdict::TakeOver);
        for expired in [false, true] {
            assert_eq!(judge(false, expired, true), Verdict::InProgress);
            assert_eq!(judge(false, expired, false), Verdict::KeyReused);
        }
    }
}
