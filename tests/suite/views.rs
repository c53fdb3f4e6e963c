//! The views and the comments of every object.
