//! Every way in that a caller could try.
