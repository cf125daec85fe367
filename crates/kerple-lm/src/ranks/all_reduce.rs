//! A deterministic all-reduce: sums the gradients of micro-batches in the order of the
//! micro-batches, at any world size.
//!
//! With `k` micro-batches, one process adds their gradients one after another,
//! `((g_0 + g_1) + g_2) + ...`. Floating-point addition is not associative, so ranks keep this
//! order. They compute the micro-batches in rounds: rank r of n takes r, n + r, 2n + r, ... After a
//! round each rank sends every other rank a chunk of its gradient. It adds the chunks that it
//! receives, in the order of the ranks, to its sum of earlier rounds. After the last round all
//! ranks send their sums to all.
//!
//! A rank sends `(n - 1)/n` of a gradient per round and as much at the end: with one micro-batch
//! per rank this equals a ring all-reduce. A missing gradient of a micro-batch is sent as `-0`,
//! which leaves the bits of any sum unchanged.

use super::Ranks;
use burn::tensor::{DType, Device, Tensor, TensorData};

/// Values that are exchanged at once: 16 MiB, and far fewer than counts of MPI may be.
const BUCKET: usize = 1 << 22;

/// A loss that may still be on its device: reading it waits for all that leads to it.
#[derive(Clone, Debug, Default)]
pub struct BatchLoss {
    /// What is known of it.
    known: f64,
    /// What is added to that: of each part the pieces, `[1]` each.
    parts: Vec<Vec<Tensor<1>>>,
}

impl BatchLoss {
    /// The number.
    pub fn read(self) -> f64 {
        of_parts(self.parts).into_iter().fold(self.known, |sum, part| sum + part)
    }

    /// All of it as one number of a device: finite where the loss is.
    pub(crate) fn on_device(&self, options: (&Device, DType)) -> Tensor<1> {
        let known = Tensor::full([1], self.known, options);
        let pieces = self.parts.iter().flatten().map(|piece| piece.clone().cast(options.1));
        pieces.fold(known, |sum, piece| sum + piece)
    }
}

/// The losses of parts, all read at once.
fn of_parts(parts: Vec<Vec<Tensor<1>>>) -> Vec<f64> {
    let counts: Vec<usize> = parts.iter().map(Vec::len).collect();
    let pieces: Vec<Tensor<1>> = parts.into_iter().flatten().collect();
    let numbers = if pieces.is_empty() { Vec::new() } else { Tensor::cat(pieces, 0).into_data().iter().collect() };
    let mut numbers: std::vec::IntoIter<f64> = numbers.into_iter();
    counts.into_iter().map(|count| numbers.by_ref().take(count).fold(0.0, |sum, piece| sum + piece)).collect()
}

/// The loss and the gradients of the parts so far.
pub struct AllReduce<'a> {
    ranks: &'a Ranks,
    /// The parameters, flattened.
    like: Vec<Tensor<1>>,
    loss: BatchLoss,
    /// One a parameter; absent where no part of this rank, alone in its process, depends on it.
    sums: Vec<Option<Tensor<1>>>,
    /// Of several ranks, the chunks of the sum that this one adds up, bucket by bucket.
    chunks: Vec<f32>,
    /// Which parameters a part of this rank has depended on.
    met: Vec<bool>,
}

impl<'a> AllReduce<'a> {
    /// Nothing yet, of parameters `like` these, flattened.
    pub fn new(ranks: &'a Ranks, like: Vec<Tensor<1>>) -> AllReduce<'a> {
        let (sums, met) = (vec![None; like.len()], vec![false; like.len()]);
        AllReduce { ranks, like, loss: BatchLoss::default(), sums, chunks: Vec::new(), met }
    }

    /// Adds a part of every rank, in the order of their numbers: this one's loss in pieces, and its gradient in each parameter,
    /// which may be absent. Every rank calls this equally often. Ranks exchange f32, and numbers for losses; one alone reads
    /// nothing.
    ///
    /// # Panics
    /// When there is not one gradient a parameter.
    pub fn add(&mut self, loss: Vec<Tensor<1>>, gradients: Vec<Option<Tensor<1>>>) {
        assert_eq!(gradients.len(), self.like.len(), "one gradient a parameter");
        if self.ranks.world_size() == 1 {
            self.loss.parts.push(loss);
            add(&mut self.sums, gradients);
            return;
        }
        let own: f64 = of_parts(vec![loss]).into_iter().sum();
        for bits in self.ranks.gather(&own.to_bits()) {
            self.loss.known += f64::from_bits(bits);
        }
        self.met.iter_mut().zip(&gradients).for_each(|(met, gradient)| *met |= gradient.is_some());
        let flat = flat(gradients, &self.sizes());
        let first = self.chunks.is_empty();
        let mut at = 0;
        for bucket in flat.chunks(BUCKET) {
            let chunk = bucket.len().div_ceil(self.ranks.world_size());
            let received = self.exchange(bucket, chunk);
            if first {
                self.chunks.extend_from_slice(&received[..chunk]);
            }
            let sums = &mut self.chunks[at..at + chunk];
            for more in received.chunks_exact(chunk).skip(usize::from(first)) {
                sums.iter_mut().zip(more).for_each(|(sum, value)| *sum += value);
            }
            at += chunk;
        }
    }

    /// This rank's chunk of a bucket as every rank has it.
    fn exchange(&self, bucket: &[f32], chunk: usize) -> Vec<f32> {
        let all = chunk * self.ranks.world_size();
        let mut received = vec![0.0; all];
        if bucket.len() == all {
            self.ranks.all_to_all(bucket, &mut received);
        } else {
            let mut padded = bucket.to_vec();
            padded.resize(all, 0.0);
            self.ranks.all_to_all(&padded, &mut received);
        }
        received
    }

    /// The sums, the same on every rank; zeros where no part depends on a parameter.
    pub fn finish(self) -> (BatchLoss, Vec<Tensor<1>>) {
        let sizes = self.sizes();
        if self.ranks.world_size() == 1 {
            let whole =
                self.sums.into_iter().zip(&self.like).map(|(sum, like)| sum.unwrap_or_else(|| like.zeros_like()));
            return (self.loss, whole.collect());
        }
        let met = self.ranks.gather(&self.met);
        let total: usize = sizes.iter().sum();
        let mut flat = Vec::with_capacity(total);
        let mut at = 0;
        while flat.len() < total {
            let bucket = (total - flat.len()).min(BUCKET);
            let chunk = bucket.div_ceil(self.ranks.world_size());
            let mut all = vec![0.0; chunk * self.ranks.world_size()];
            self.ranks.all_gather_values(&self.chunks[at..at + chunk], &mut all);
            flat.extend_from_slice(&all[..bucket]);
            at += chunk;
        }
        let mut at = 0;
        let whole = self.like.iter().zip(sizes).enumerate().map(|(parameter, (like, size))| {
            let values = &flat[at..at + size];
            at += size;
            if met.iter().any(|met| met[parameter]) {
                Tensor::from_data(TensorData::new(values.to_vec(), [size]), (&like.device(), like.dtype()))
            } else {
                like.zeros_like()
            }
        });
        (self.loss, whole.collect())
    }

    fn sizes(&self) -> Vec<usize> {
        self.like.iter().map(|values| values.dims()[0]).collect()
    }
}

/// All gradients behind one another.
fn flat(gradients: Vec<Option<Tensor<1>>>, sizes: &[usize]) -> Vec<f32> {
    let mut flat = Vec::with_capacity(sizes.iter().sum());
    for (gradient, size) in gradients.into_iter().zip(sizes) {
        match gradient {
            Some(gradient) => flat.extend(gradient.into_data().iter::<f32>()),
            None => flat.resize(flat.len() + size, -0.0),
        }
    }
    flat
}

/// Adds gradients; a parameter that none depends on stays without one.
pub(crate) fn add(sums: &mut [Option<Tensor<1>>], found: Vec<Option<Tensor<1>>>) {
    for (sum, gradient) in sums.iter_mut().zip(found) {
        *sum = match (sum.take(), gradient) {
            (Some(sum), Some(gradient)) => Some(sum + gradient),
            (sum, gradient) => sum.or(gradient),
        };
    }
}
