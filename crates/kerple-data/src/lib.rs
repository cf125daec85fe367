//! kerple-data
