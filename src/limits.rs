//! How large arguments may be, and how long times. Sizes are in bytes of the database's encoding; over them is `22023`.

use std::time::Duration;

/// Longest tenant and endpoint.
pub const NAME_BYTES: usize = 255;
/// Longest key, in characters.
pub const KEY_CHARS: usize = 255;
/// No key of that many characters is longer, in any encoding: what is need not be looked at.
pub const KEY_BYTES: usize = 4 * KEY_CHARS;
pub const REQUEST_TARGET_BYTES: usize = 8 * 1024;
/// Of the text form.
pub const HEADERS_BYTES: usize = 64 * 1024;
pub const RESOURCE_REF_BYTES: usize = 2 * 1024;
pub const RECOVERY_POINT_BYTES: usize = 255;
/// Of the text form.
pub const RECOVERY_STATE_BYTES: usize = 64 * 1024;
pub const NOTES_BYTES: usize = 8 * 1024;
/// A jsonb value is never more than this many times as large as its text (an array of empty strings comes close).
pub const JSONB_GROWTH: usize = 8;

/// Rows of one sweep.
pub const SWEEP_ROWS: i32 = 1_000_000;

/// The least that a ttl may be, and that of an endpoint that is not registered.
pub const LEAST_TTL: Duration = Duration::from_secs(24 * 60 * 60);
/// A longer wait or retention is taken for a mistake, as is an infinite one.
pub const LONGEST_WAIT: Duration = Duration::from_secs(60 * 60);
pub const LONGEST_TTL: Duration = Duration::from_secs(36_500 * 24 * 60 * 60);
/// A longer retention gets a warning.
pub const LONG_TTL: Duration = Duration::from_secs(7 * 24 * 60 * 60);
pub const LONGEST_RETRY_WINDOW: Duration = Duration::from_secs(18_250 * 24 * 60 * 60);
pub const LONGEST_LEASE: Duration = Duration::from_secs(24 * 60 * 60);
