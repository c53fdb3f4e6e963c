//! Bodies and headers, byte for byte, in every encoding.
