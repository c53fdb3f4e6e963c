//! What keeps the worker from its work in a database: logged when it appears or changes, not again in every round.
//!
//! Each visit is a process of its own, so it is the launcher that remembers. It hands a visitor the mark of what was
//! logged last, and finds in shared memory the mark that the visitor leaves. Only one visit goes on at a time.

use crate::pg::process::Failure;
use crate::pg::tell;
use crate::refusal::Refusal;
use pgrx::{pg_guard, pg_shmem_init, pg_sys, PgAtomic};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

// SAFETY: the name is ours alone.
static LEFT_BY_VISITOR: PgAtomic<AtomicU64> = unsafe { PgAtomic::new(c"idempotency_enforcer trouble") };

/// Asks for the shared memory. Called while the postmaster preloads the library.
pub fn reserve() {
    pg_shmem_init!(LEFT_BY_VISITOR = AtomicU64::new(0));
}

/// What was logged last of a database; 0 for nothing.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Mark(u64);

impl Mark {
    /// Of the troubles of one visit. What differs in numbers only, as times and process ids do, is the same trouble.
    fn of(database: pg_sys::Oid, troubles: &[Trouble]) -> Mark {
        if troubles.is_empty() {
            return Mark::default();
        }
        let mut hasher = DefaultHasher::new();
        database.to_u32().hash(&mut hasher);
        for trouble in troubles {
            (trouble.what, &trouble.sqlstate).hash(&mut hasher);
            trouble.message.chars().filter(|c| !c.is_ascii_digit()).for_each(|c| c.hash(&mut hasher));
        }
        Mark(hasher.finish().max(1))
    }

    pub fn from_hex(hex: &str) -> Mark {
        Mark(u64::from_str_radix(hex, 16).unwrap_or(0))
    }

    pub fn to_hex(self) -> String {
        format!("{:x}", self.0)
    }

    /// Leaves it for the launcher.
    pub fn leave(self) {
        LEFT_BY_VISITOR.get().store(self.0, Relaxed);
    }

    /// What the last visitor has left; one that made way or was ended has left what was there.
    pub fn left() -> Mark {
        Mark(LEFT_BY_VISITOR.get().load(Relaxed))
    }
}

/// Something that failed.
pub struct Trouble {
    /// What cannot be done, for the log.
    what: &'static str,
    sqlstate: String,
    message: String,
    advice: String,
}

impl Trouble {
    pub fn caught(what: &'static str, failure: Failure) -> Self {
        let advice = match failure.sqlstate.as_str() {
            "23503" => "Drop the foreign key: a key is deleted when its retention ends.",
            _ => "Ask idem_health() for the cause.",
        };
        Trouble { what, sqlstate: failure.sqlstate, message: failure.message, advice: advice.to_owned() }
    }

    pub fn refused(what: &'static str, refusal: Refusal) -> Self {
        let Refusal { sqlstate, message, detail, hint } = refusal;
        Trouble { what, sqlstate: sqlstate.to_owned(), message, advice: format!("{detail} {hint}") }
    }

    /// Whether it may be the fault of single rows, so that others can be swept: data exceptions, violated
    /// constraints, and what a trigger raises.
    pub fn is_of_a_row(&self) -> bool {
        ["22", "23", "P0"].iter().any(|class| self.sqlstate.starts_with(class))
    }

    /// One line: control characters are escaped; what was no UTF-8 may have no place in the database's encoding.
    fn line(&self, database: &str) -> String {
        let Trouble { what, sqlstate, message, advice } = self;
        format!("idempotency_enforcer: in database {database:?} {what}: {message} (SQLSTATE {sqlstate}). {advice} ")
            .chars()
            .flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] })
            .map(|c| if c == char::REPLACEMENT_CHARACTER { '?' } else { c })
            .chain("Logged once, until it changes.".chars())
            .collect()
    }
}

/// Logs the troubles of a visit unless they are what was logged last, and leaves their mark. Must run in a
/// transaction, as text is converted.
pub fn report(database: (pg_sys::Oid, &str), troubles: &[Trouble], logged: Mark) {
    let mark = Mark::of(database.0, troubles);
    if mark != logged {
        for trouble in troubles {
            tell::log(&trouble.line(database.1));
        }
    }
    mark.leave();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trouble(message: &str) -> Trouble {
        let failure = Failure { sqlstate: "P0001".into(), message: message.into() };
        Trouble::caught("expired keys cannot be deleted", failure)
    }

    #[test]
    fn numbers_make_no_other_trouble_but_words_and_databases_do() {
        let mark = |database: u32, message: &str| Mark::of(database.into(), &[trouble(message)]);
        assert!(mark(1, "no, said 17") == mark(1, "no, said 4711"));
        assert!(mark(1, "no") != mark(1, "never") && mark(1, "no") != mark(2, "no"));
        assert!(Mark::of(1.into(), &[]) == Mark::default() && mark(1, "") != Mark::default());
        assert!(Mark::from_hex(&mark(1, "no").to_hex()) == mark(1, "no"));
    }

    #[test]
    fn a_trouble_is_one_line() {
        let line = trouble("no\nFATAL:  forged \u{fffd}").line("a \"b\"");
        assert!(!line.contains('\n') && line.contains(r#"in database "a \"b\"" expired"#), "{line}");
        assert!(line.contains(r"no\nFATAL:  forged ? (SQLSTATE P0001)"), "{line}");
    }
}
