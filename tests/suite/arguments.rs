//! What bad input gets: a SQLSTATE, a message, a DETAIL and a HINT, and nothing lost.
