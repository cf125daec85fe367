//! kerple-data
/// batch
pub struct Batch {
    /// a
    pub tokens: Vec<u32>,
    /// a
    pub targets: Vec<u32>,
    /// a
    pub batch: usize,
    /// a
    pub seq_len: usize,
}
/// a
pub fn random_segments(_len: usize, _length: usize, _count: usize, _seed: u64) -> Vec<usize> {
    todo!()
}
