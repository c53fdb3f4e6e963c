//! Many claims: in flight, finished, and in one transaction.
