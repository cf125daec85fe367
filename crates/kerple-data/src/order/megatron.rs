//! The sample order of Megatron-LM as GPT-NeoX uses it, index for index.
//!
//! ```text
//! documents, repeated once an epoch --shuffle--> one stream --cut every L tokens--> samples of L + 1 --shuffle--> order
//! ```
//!
//! Neighbouring samples share one token. Both shuffles draw from one [`NumpyRandom`], documents
//! first. It exists to repeat runs of GPT-NeoX; [`Sampling::Random`](super::Sampling::Random) is
//! simpler and needs no tables.

use super::NumpyRandom;
use crate::error::{Error, Result};
use crate::machine;
use crate::tokens::TokenStream;

/// Where the splits of `documents` documents begin and end: train is `0..b[1]`, valid `b[1]..b[2]`, test `b[2]..b[3]`.
///
/// `shares` are up to three numbers separated by commas, e.g. `"949,50,1"`, in any unit. Each split's size is rounded on
/// its own (half to even), then all boundaries move together so that the last is `documents`.
///
/// # Errors
/// Shares that are not numbers, are negative or add up to nothing.
pub fn split_boundaries(documents: u64, shares: &str) -> Result<[u64; 4]> {
    let refuse = |what: &str| Error::refused(format!("split `{shares}`: {what}"), "write three shares, e.g. 949,50,1");
    let mut parts = [0.0f64; 3];
    for (at, share) in shares.split(',').enumerate() {
        let part = parts.get_mut(at).ok_or_else(|| refuse("expected at most 3 shares"))?;
        *part = share.trim().parse().map_err(|_| refuse(&format!("`{share}` is not a number")))?;
        if !(part.is_finite() && *part >= 0.0) {
            return Err(refuse(&format!("{part} is negative; a share must be at least 0")));
        }
    }
    let sum: f64 = parts.iter().sum();
    if sum <= 0.0 {
        return Err(refuse("the shares sum to 0"));
    }
    let mut ends = [0i64; 4];
    for (at, part) in parts.iter().enumerate() {
        ends[at + 1] = ends[at] + (part / sum * documents as f64).round_ties_even() as i64;
    }
    let excess = ends[3] - documents as i64;
    let moved = |end: i64| (end - excess).max(0) as u64;
    Ok([0, moved(ends[1]), moved(ends[2]), documents])
}

/// `epochs` copies of `0..documents`, shuffled together.
pub fn document_index(documents: usize, epochs: usize, random: &mut NumpyRandom) -> Vec<i32> {
    let documents = i32::try_from(documents).expect("GPT-NeoX counts documents in 32 bits");
    let mut index: Vec<i32> = (0..epochs).flat_map(|_| 0..documents).collect();
    random.shuffle(&mut index);
    index
}

/// Where samples begin: sample `i` runs from `index[i]` to `index[i + 1]`, inclusive, each `[place in doc_idx, offset]`.
///
/// `sizes` are the documents' token counts, `doc_idx` the order of documents over all epochs and `tokens_per_epoch` the
/// sum of `sizes`. Makes `(epochs * tokens_per_epoch - 1) / seq_len` samples, thus one entry more.
pub fn sample_index(
    sizes: &[i32],
    doc_idx: &[i32],
    seq_len: usize,
    epochs: usize,
    tokens_per_epoch: usize,
) -> Vec<[i32; 2]> {
    let samples = samples_in(epochs * tokens_per_epoch, seq_len);
    let (mut place, mut offset) = (0usize, 0usize);
    let mut index = Vec::with_capacity(samples + 1);
    index.push([0, 0]);
    for _ in 0..samples {
        let mut left = seq_len;
        loop {
            let rest = sizes[doc_idx[place] as usize] as usize - offset;
            if left < rest {
                offset += left;
                break;
            }
            left -= rest;
            (place, offset) = (place + 1, 0);
        }
        index.push([place as i32, offset as i32]);
    }
    index
}

/// The order in which `samples` samples are read.
pub fn shuffle_index(samples: usize, random: &mut NumpyRandom) -> Vec<i64> {
    let mut index: Vec<i64> = (0..samples as i64).collect();
    random.shuffle(&mut index);
    index
}

/// Samples of `seq_len + 1` tokens overlapping by one in a stream of `tokens`.
fn samples_in(tokens: usize, seq_len: usize) -> usize {
    tokens.saturating_sub(1) / seq_len
}

/// The tables of one training set.
pub(super) struct MegatronOrder {
    documents: Vec<i32>,
    samples: Vec<[i32; 2]>,
    shuffled: Vec<i64>,
    seq_len: usize,
}

impl MegatronOrder {
    /// Tables for at least `needed` samples, in as few epochs as that takes.
    ///
    /// # Errors
    /// More documents, tokens a document or memory than the tables have room for.
    pub(super) fn new(tokens: &TokenStream, seq_len: usize, needed: u128, seed: u32) -> Result<MegatronOrder> {
        let length = |document| i32::try_from(tokens.document(document).len());
        let sizes: Vec<i32> =
            (0..tokens.documents()).map(length).collect::<std::result::Result<_, _>>().map_err(|_| {
                Error::refused(
                    format!("a document has more than {} tokens, the limit of GPT-NeoX's data order", i32::MAX),
                    "set data.sampling = \"random\", or use shorter documents",
                )
            })?;
        // the last token has no target in the epoch that ends with it
        let epochs = needed.saturating_mul(seq_len as u128).saturating_add(1).div_ceil(tokens.len() as u128).max(1);
        let places = epochs * sizes.len() as u128;
        if places > i32::MAX as u128 {
            return Err(Error::refused(
                format!("{epochs} epochs have {places} documents; GPT-NeoX's data order counts documents in 32 bits"),
                "train for fewer steps, or set data.sampling = \"random\"",
            ));
        }
        let samples = epochs * tokens.len() as u128 / seq_len as u128;
        let hint = "train for fewer steps, or set data.sampling = \"random\", which needs no tables";
        machine::require("GPT-NeoX's data order", 4 * places + 16 * samples, hint)?;
        let epochs = epochs as usize;
        let mut random = NumpyRandom::new(seed);
        let documents = document_index(sizes.len(), epochs, &mut random);
        let samples = sample_index(&sizes, &documents, seq_len, epochs, tokens.len());
        let shuffled = shuffle_index(samples.len() - 1, &mut random);
        Ok(MegatronOrder { documents, samples, shuffled, seq_len })
    }

    /// Samples that are read before the order starts over. GPT-NeoX reports one less than there are and so do we.
    pub(super) fn len(&self) -> usize {
        (self.shuffled.len() - 1).max(1)
    }

    /// Appends the `seq_len + 1` tokens of the `at`-th sample in reading order, and returns where documents begin among them.
    pub(super) fn read(&self, tokens: &TokenStream, at: u128, out: &mut Vec<u32>) -> Result<Vec<usize>> {
        let sample = self.shuffled[(at % self.len() as u128) as usize] as usize;
        let [place, offset] = self.samples[sample].map(|number| number as usize);
        let (mut place, mut offset, mut left) = (place, offset, self.seq_len + 1);
        let mut starts = Vec::new();
        while left > 0 {
            let document = tokens.document(self.documents[place] as usize);
            let start = document.start + offset;
            let take = left.min(document.end - start);
            tokens.read_into(start..start + take, out)?;
            // a document without tokens begins nothing
            if take > 0 {
                starts.push(self.seq_len + 1 - left);
            }
            left -= take;
            (place, offset) = (place + 1, 0);
        }
        Ok(starts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn shares_must_be_three_numbers() {
        let message = |shares: &str| split_boundaries(10, shares).unwrap_err().to_string();
        insta::assert_snapshot!(message("9,x"), @"split `9,x`: `x` is not a number");
        insta::assert_snapshot!(message("1,-1"), @"split `1,-1`: -1 is negative; a share must be at least 0");
        insta::assert_snapshot!(message("0,0,0"), @"split `0,0,0`: the shares sum to 0");
        insta::assert_snapshot!(message("1,1,1,1"), @"split `1,1,1,1`: expected at most 3 shares");
    }

    proptest! {
        /// Every sample, read document by document, is a window of the concatenated stream.
        #[test]
        fn samples_are_windows_of_the_stream(
            sizes in prop::collection::vec(1i32..40, 1..12), seq_len in 1usize..50, epochs in 1usize..4, seed: u32,
        ) {
            let documents = document_index(sizes.len(), epochs, &mut NumpyRandom::new(seed));
            let per_epoch = sizes.iter().sum::<i32>() as usize;
            let samples = sample_index(&sizes, &documents, seq_len, epochs, per_epoch);
            prop_assert_eq!(samples.len(), (epochs * per_epoch - 1) / seq_len + 1);
            for (sample, [place, offset]) in samples.iter().enumerate() {
                let before: i32 = documents[..*place as usize].iter().map(|document| sizes[*document as usize]).sum();
                prop_assert_eq!((before + offset) as usize, sample * seq_len);
            }
        }

        #[test]
        fn boundaries_never_cross(documents in 0u64..5000, shares in prop::collection::vec(0u32..1000, 3)) {
            prop_assume!(shares.iter().sum::<u32>() > 0);
            let spec = shares.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
            let ends = split_boundaries(documents, &spec).unwrap();
            prop_assert!(ends.is_sorted() && ends[3] == documents, "{:?}", ends);
        }
    }
}
