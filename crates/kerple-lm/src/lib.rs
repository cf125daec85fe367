//! kerple-lm
