//! Killed backends, lost connections, lost acknowledgements.
