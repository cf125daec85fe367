//! kerple-burn
