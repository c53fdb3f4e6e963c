//! The states of a stored row.

/// The column `status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    InProgress,
    Succeeded,
    Failed,
    /// A tombstone: a claim that was committed open and then released, or a result that was forgotten. It keeps the number
    /// of the attempt, so that it is not given out again.
    Released,
}

impl Status {
    pub fn name(self) -> &'static str {
        match self {
            Status::InProgress => "in_progress",
            Status::Succeeded => "succeeded",
            Status::Failed => "failed",
            Status::Released => "released",
        }
    }

    /// `None` for what the table's constraint does not let in.
    pub fn of(name: &[u8]) -> Option<Status> {
        [Status::InProgress, Status::Succeeded, Status::Failed, Status::Released]
            .into_iter()
            .find(|status| status.name().as_bytes() == name)
    }

    /// There is a result to replay.
    pub fn is_finished(self) -> bool {
        matches!(self, Status::Succeeded | Status::Failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for status in [Status::InProgress, Status::Succeeded, Status::Failed, Status::Released] {
            assert_eq!(Status::of(status.name().as_bytes()), Some(status));
        }
        assert_eq!(Status::of(b"done"), None);
    }
}
