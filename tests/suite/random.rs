//! Many clients at random, and what must hold afterwards.
