//! Simultaneous arrivals: the gate, waiting, and one execution.
