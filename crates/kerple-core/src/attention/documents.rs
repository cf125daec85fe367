//! Packed documents: rows of a batch that hold several documents one after another, none of which
//! attends to another.
//!
//! FlashAttention calls this *varlen*, FlexAttention a *document mask*, transformers *packed
//! sequences* or *padding-free training*. What an engine computes for a document is what it computes
//! for that document alone; packing changes the layout only.
//!
//! A document with `Q` queries and `K` keys is aligned at its end, as any call is: query `r` is at
//! position `K - Q + r` of the document. Without keys, or before the first of them, a query gives
//! zeros. Tokens after the last document of a row are padding.

use super::KeyInterval;
use std::ops::Range;

/// Which tokens of each row of a batch are one document.
///
/// ```
/// use kerple_core::attention::PackedDocuments;
/// let packed = PackedDocuments::from_ids(&[0, 0, 0, 1, 1, -1], 1).unwrap();
/// assert_eq!(packed, PackedDocuments::from_lengths([&[3, 2][..]], 6).unwrap());
/// assert_eq!(packed.position_ids(), [0, 1, 2, 0, 1, 0]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedDocuments {
    /// By row and document; a row ends with its padding, where it has some.
    segments: Vec<DocumentSegment>,
    /// Of each row the first of its segments, then the number of all, `[B + 1]`.
    first_segments: Vec<usize>,
    queries: usize,
    keys: usize,
}

/// Consecutive tokens of a row: one document, or the padding after the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DocumentSegment {
    /// Row of the batch.
    pub row: usize,
    /// First query of the row that belongs to the segment.
    pub first_query: usize,
    /// Queries of the segment.
    pub queries: usize,
    /// First key of the row that belongs to the segment.
    pub first_key: usize,
    /// Keys of the segment.
    pub keys: usize,
    /// Those that are not padding: `keys`, or 0 for padding.
    pub length: usize,
}

impl DocumentSegment {
    /// Whether these tokens belong to no document.
    pub fn is_padding(&self) -> bool {
        self.length < self.keys
    }

    /// The larger of its numbers of queries and keys: distances within it are less.
    pub fn reach(&self) -> usize {
        self.queries.max(self.keys)
    }
}

/// Boundaries that are no packed documents: which entry, its value and what it must be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the message names every field")]
pub enum PackingError {
    #[error("{name} is empty; cumulative lengths begin with 0 and end with the number of tokens")]
    Empty { name: &'static str },
    #[error("{name}[0] = {value}; cumulative lengths begin with 0")]
    Start { name: &'static str, value: i64 },
    #[error("{name}[{index}] = {value} is less than {name}[{}] = {before}; cumulative lengths never decrease", index - 1)]
    Decreasing { name: &'static str, index: usize, value: i64, before: i64 },
    #[error(
        "{name}[{index}] = {value}, but there are {tokens} tokens; cumulative lengths end with the number of tokens"
    )]
    End { name: &'static str, index: usize, value: i64, tokens: usize },
    #[error("cu_seqlens_q has {queries} documents and cu_seqlens_k has {keys}; they must have the same documents")]
    Counts { queries: usize, keys: usize },
    #[error("document_ids has {got} entries for {rows} rows, which is not a whole number of tokens per row")]
    Shape { got: usize, rows: usize },
    #[error("document_ids[{row}, {token}] = {value}; ids count from 0, and -1 is padding")]
    Id { row: usize, token: usize, value: i64 },
    #[error("document {document} of row {row} comes back at token {token}; tokens of a document must stand together")]
    Returns { row: usize, token: usize, document: i64 },
    #[error("document {document} of row {row} follows document {before} at token {token}; ids never decrease")]
    Order { row: usize, token: usize, document: i64, before: i64 },
    #[error(
        "token {token} of row {row} is padding (-1), but document {document} follows; padding comes after every document"
    )]
    Padding { row: usize, token: usize, document: i64 },
    #[error("documents of row {row} have {total} tokens, but a row has {tokens}")]
    Total { row: usize, total: usize, tokens: usize },
    #[error(
        "{queries} queries exceed the {keys} keys of a row; the last queries of packed documents have keys of their own"
    )]
    Queries { queries: usize, keys: usize },
}

impl PackedDocuments {
    /// One row of `tokens` tokens, split at cumulative lengths `0, n_0, n_0 + n_1, ..`. Equal
    /// neighbours are an empty document.
    ///
    /// # Errors
    /// The first entry that is no cumulative length.
    pub fn from_cu_seqlens(cu_seqlens: &[i64], tokens: usize) -> Result<PackedDocuments, PackingError> {
        let ends = checked_ends("cu_seqlens", cu_seqlens, tokens)?;
        Ok(PackedDocuments::from_ends(&ends, &ends, [tokens; 2]))
    }

    /// One row whose documents have queries and keys of their own, as FlashAttention's varlen
    /// interface takes them.
    ///
    /// # Errors
    /// The first entry that is no cumulative length; different numbers of documents.
    pub fn from_cu_seqlens_qk(
        cu_seqlens_q: &[i64],
        cu_seqlens_k: &[i64],
        queries: usize,
        keys: usize,
    ) -> Result<PackedDocuments, PackingError> {
        let query_ends = checked_ends("cu_seqlens_q", cu_seqlens_q, queries)?;
        let key_ends = checked_ends("cu_seqlens_k", cu_seqlens_k, keys)?;
        if query_ends.len() != key_ends.len() {
            return Err(PackingError::Counts { queries: query_ends.len(), keys: key_ends.len() });
        }
        Ok(PackedDocuments::from_ends(&query_ends, &key_ends, [queries, keys]))
    }

    /// Rows by the number of each token's document, `[B, L]`: from 0, never decreasing, with -1 for
    /// padding after the last document. Only changes count, so numbers may be skipped.
    ///
    /// # Errors
    /// The first token whose number breaks these rules.
    pub fn from_ids(document_ids: &[i64], rows: usize) -> Result<PackedDocuments, PackingError> {
        let tokens = document_ids.len().checked_div(rows).unwrap_or(0);
        if tokens * rows != document_ids.len() {
            return Err(PackingError::Shape { got: document_ids.len(), rows });
        }
        let mut packed = PackedDocuments::without_rows(tokens, tokens);
        for row in 0..rows {
            let ids = &document_ids[row * tokens..][..tokens];
            check_ids(row, ids)?;
            let documents = ids.chunk_by(|a, b| a == b).filter(|document| document[0] >= 0);
            packed.push_row(documents.map(|document| [document.len(); 2]));
        }
        Ok(packed)
    }

    /// Rows by the lengths of their documents; what is left of `tokens` is padding.
    ///
    /// # Errors
    /// A row whose documents have more tokens than there are.
    pub fn from_lengths<'l>(
        rows: impl IntoIterator<Item = &'l [usize]>,
        tokens: usize,
    ) -> Result<PackedDocuments, PackingError> {
        let mut packed = PackedDocuments::without_rows(tokens, tokens);
        for (row, lengths) in rows.into_iter().enumerate() {
            let total = lengths.iter().fold(0usize, |total, length| total.saturating_add(*length));
            if total > tokens {
                return Err(PackingError::Total { row, total, tokens });
            }
            packed.push_row(lengths.iter().map(|&length| [length; 2]));
        }
        Ok(packed)
    }

    fn from_ends(query_ends: &[usize], key_ends: &[usize], [queries, keys]: [usize; 2]) -> PackedDocuments {
        let mut packed = PackedDocuments::without_rows(queries, keys);
        let mut before = [0; 2];
        packed.push_row(query_ends.iter().zip(key_ends).map(|(&query, &key)| {
            let sizes = [query - before[0], key - before[1]];
            before = [query, key];
            sizes
        }));
        packed
    }

    fn without_rows(queries: usize, keys: usize) -> PackedDocuments {
        PackedDocuments { segments: Vec::new(), first_segments: vec![0], queries, keys }
    }

    /// Adds a row of documents, each with its queries and keys, and its padding.
    fn push_row(&mut self, documents: impl Iterator<Item = [usize; 2]>) {
        let row = self.rows();
        let [mut first_query, mut first_key] = [0; 2];
        for [queries, keys] in documents {
            self.segments.push(DocumentSegment { row, first_query, queries, first_key, keys, length: keys });
            first_query += queries;
            first_key += keys;
        }
        let [queries, keys] = [self.queries - first_query, self.keys - first_key];
        if keys > 0 {
            self.segments.push(DocumentSegment { row, first_query, queries, first_key, keys, length: 0 });
        }
        self.first_segments.push(self.segments.len());
    }

    /// The same documents for the last `queries` queries of each row, as after a KV cache.
    ///
    /// # Errors
    /// If a row has fewer.
    pub fn last_queries(&self, queries: usize) -> Result<PackedDocuments, PackingError> {
        let Some(skipped) = self.queries.checked_sub(queries) else {
            return Err(PackingError::Queries { queries, keys: self.queries });
        };
        let mut last = PackedDocuments { queries, ..self.clone() };
        for segment in &mut last.segments {
            let end = (segment.first_query + segment.queries).saturating_sub(skipped);
            segment.first_query = segment.first_query.saturating_sub(skipped);
            segment.queries = end - segment.first_query;
        }
        Ok(last)
    }

    /// Some of the rows, as a batch of their own.
    ///
    /// # Panics
    /// If there are fewer rows.
    pub fn slice_rows(&self, rows: Range<usize>) -> PackedDocuments {
        let mut part = PackedDocuments::without_rows(self.queries, self.keys);
        for row in rows {
            part.push_row(self.row(row).map(|segment| [segment.queries, segment.keys]));
        }
        part
    }

    /// Rows, B.
    pub fn rows(&self) -> usize {
        self.first_segments.len() - 1
    }

    /// Queries of a row, Q.
    pub fn queries(&self) -> usize {
        self.queries
    }

    /// Keys of a row, K.
    pub fn keys(&self) -> usize {
        self.keys
    }

    /// Documents and paddings, by row and document.
    pub fn segments(&self) -> &[DocumentSegment] {
        &self.segments
    }

    /// The documents of a row, in order; its padding is not among them.
    pub fn row(&self, row: usize) -> impl Iterator<Item = DocumentSegment> + '_ {
        let segments = &self.segments[self.first_segments[row]..self.first_segments[row + 1]];
        segments.iter().copied().filter(|segment| !segment.is_padding())
    }

    /// All documents, by row and document.
    pub fn documents(&self) -> impl Iterator<Item = DocumentSegment> + '_ {
        (0..self.rows()).flat_map(|row| self.row(row))
    }

    /// The first of the longest documents and its number within its row.
    pub fn longest(&self) -> Option<(usize, DocumentSegment)> {
        self.longest_by(DocumentSegment::reach)
    }

    /// The same by another size of documents.
    pub fn longest_by(&self, size: impl Fn(&DocumentSegment) -> usize) -> Option<(usize, DocumentSegment)> {
        let numbered = (0..self.rows()).flat_map(|row| self.row(row).enumerate());
        numbered.reduce(|longest, next| if size(&next.1) > size(&longest.1) { next } else { longest })
    }

    /// Most queries or keys of a document: tables of `longest_len` distances suffice.
    pub fn longest_len(&self) -> usize {
        self.documents().map(|document| document.reach()).max().unwrap_or(0)
    }

    /// Cumulative lengths of the keys of a row's documents.
    pub fn cu_seqlens(&self, row: usize) -> Vec<usize> {
        std::iter::once(0).chain(self.row(row).map(|document| document.first_key + document.keys)).collect()
    }

    /// Of each key the first key of its document, `[B, K]`; of padding `K`.
    pub fn starts(&self) -> Vec<usize> {
        self.by_key(self.keys, |document, _| document.first_key)
    }

    /// Of each key the end of its document, one past its last key, `[B, K]`; of padding 0.
    pub fn ends(&self) -> Vec<usize> {
        self.by_key(0, |document, _| document.first_key + document.keys)
    }

    /// Of each key its position in its document, `[B, K]`; of padding 0.
    pub fn position_ids(&self) -> Vec<usize> {
        self.by_key(0, |_, position| position)
    }

    /// Of each key the number of its document within its row, `[B, K]`; of padding -1.
    pub fn document_ids(&self) -> Vec<i64> {
        let mut ids = vec![-1; self.rows() * self.keys];
        for row in 0..self.rows() {
            for (number, document) in (0..).zip(self.row(row)) {
                ids[row * self.keys + document.first_key..][..document.keys].fill(number);
            }
        }
        ids
    }

    /// Of each query the keys of its document, `[B, Q]`; of padding none.
    pub fn intervals(&self) -> Vec<KeyInterval> {
        let mut intervals = vec![KeyInterval { start: self.keys, end: 0 }; self.rows() * self.queries];
        for DocumentSegment { row, first_query, queries, first_key, keys, .. } in self.documents() {
            intervals[row * self.queries + first_query..][..queries]
                .fill(KeyInterval { start: first_key, end: first_key + keys });
        }
        intervals
    }

    /// Whether each query is at the same distance to the keys of its document as in its row, whose
    /// last query is at the last key. So it is where queries and keys are the same tokens, or queries
    /// are the [last ones](PackedDocuments::last_queries) of a row.
    pub fn keep_distances(&self) -> bool {
        let aligned =
            |it: DocumentSegment| it.first_key + it.keys + self.queries == it.first_query + it.queries + self.keys;
        self.documents().filter(|document| document.queries > 0).all(aligned)
    }

    fn by_key(&self, padding: usize, value: impl Fn(&DocumentSegment, usize) -> usize) -> Vec<usize> {
        let mut values = vec![padding; self.rows() * self.keys];
        for document in self.documents() {
            let to = &mut values[document.row * self.keys + document.first_key..][..document.keys];
            to.iter_mut().enumerate().for_each(|(position, to)| *to = value(&document, position));
        }
        values
    }
}

/// The ends of documents, given cumulative lengths.
fn checked_ends(name: &'static str, cumulative: &[i64], tokens: usize) -> Result<Vec<usize>, PackingError> {
    let (&first, rest) = cumulative.split_first().ok_or(PackingError::Empty { name })?;
    if first != 0 {
        return Err(PackingError::Start { name, value: first });
    }
    let mut before = 0;
    for (index, &value) in (1..).zip(rest) {
        if value < before {
            return Err(PackingError::Decreasing { name, index, value, before });
        }
        before = value;
    }
    if usize::try_from(before) != Ok(tokens) {
        return Err(PackingError::End { name, index: rest.len(), value: before, tokens });
    }
    Ok(rest.iter().map(|&end| end as usize).collect())
}

/// Refuses numbers of documents of a row that are not in order.
fn check_ids(row: usize, ids: &[i64]) -> Result<(), PackingError> {
    for (token, &value) in ids.iter().enumerate() {
        if value < -1 {
            return Err(PackingError::Id { row, token, value });
        }
        let before = if token > 0 { ids[token - 1] } else { value };
        if before == -1 && value >= 0 {
            return Err(PackingError::Padding { row, token: token - 1, document: value });
        }
        if (0..before).contains(&value) {
            let returns = ids[..token].contains(&value);
            return Err(if returns {
                PackingError::Returns { row, token, document: value }
            } else {
                PackingError::Order { row, token, document: value, before }
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn message<T: std::fmt::Debug>(result: Result<T, PackingError>) -> String {
        result.unwrap_err().to_string()
    }

    #[test]
    fn bad_cumulative_lengths_are_refused_by_entry() {
        let of = |cu: &[i64], tokens| message(PackedDocuments::from_cu_seqlens(cu, tokens));
        assert!(of(&[], 0).starts_with("cu_seqlens is empty"));
        assert!(of(&[1, 3], 3).starts_with("cu_seqlens[0] = 1;"));
        assert!(of(&[0, 3, 2, 5], 5).starts_with("cu_seqlens[2] = 2 is less than cu_seqlens[1] = 3"));
        assert!(of(&[0, 3, 4], 5).starts_with("cu_seqlens[2] = 4, but there are 5 tokens"));
        assert!(of(&[0, -1], 0).starts_with("cu_seqlens[1] = -1 is less"));
        let pair = message(PackedDocuments::from_cu_seqlens_qk(&[0, 1, 2], &[0, 4], 2, 4));
        assert!(pair.starts_with("cu_seqlens_q has 2 documents and cu_seqlens_k has 1"), "{pair}");
        let keys = message(PackedDocuments::from_cu_seqlens_qk(&[0, 2], &[0, 5], 2, 4));
        assert!(keys.starts_with("cu_seqlens_k[1] = 5, but there are 4 tokens"), "{keys}");
    }

    #[test]
    fn bad_ids_are_refused_by_token() {
        let of = |ids: &[i64], rows| message(PackedDocuments::from_ids(ids, rows));
        assert_eq!(
            of(&[0, 0, 1, 0], 1),
            "document 0 of row 0 comes back at token 3; tokens of a document must stand together"
        );
        assert!(of(&[0, 0, 2, 1], 2).starts_with("document 1 of row 1 follows document 2 at token 1"));
        assert!(of(&[0, -1, 1], 1).starts_with("token 1 of row 0 is padding (-1), but document 1 follows"));
        assert!(of(&[0, -2], 1).starts_with("document_ids[0, 1] = -2"));
        assert!(of(&[0, 0, 0], 2).starts_with("document_ids has 3 entries for 2 rows"));
        assert!(of(&[0], 0).starts_with("document_ids has 1 entries for 0 rows"));
        let total = message(PackedDocuments::from_lengths([&[3, 3][..]], 5));
        assert!(total.starts_with("documents of row 0 have 6 tokens, but a row has 5"), "{total}");
    }

    #[test]
    fn queries_have_the_keys_of_their_document() {
        let bounds = |packed: &PackedDocuments| -> Vec<[usize; 2]> {
            packed.intervals().iter().map(|interval| [interval.start, interval.end]).collect()
        };
        let packed = PackedDocuments::from_lengths([&[2, 0, 1][..], &[4]], 4).unwrap();
        assert_eq!(bounds(&packed), [[0, 2], [0, 2], [2, 3], [4, 0], [0, 4], [0, 4], [0, 4], [0, 4]]);
        let last = packed.last_queries(3).unwrap();
        assert_eq!(bounds(&last), [[0, 2], [2, 3], [4, 0], [0, 4], [0, 4], [0, 4]]);
        assert!(packed.keep_distances() && last.keep_distances());
        // of the first document all tokens are queries, of the second only its last
        let apart = PackedDocuments::from_cu_seqlens_qk(&[0, 2, 3], &[0, 2, 4], 3, 4).unwrap();
        assert!(!apart.keep_distances());
        assert_eq!(bounds(&apart), [[0, 2], [0, 2], [2, 4]]);
    }

    #[test]
    fn nothing_and_next_to_nothing_are_accepted() {
        for packed in [PackedDocuments::from_cu_seqlens(&[0], 0), PackedDocuments::from_ids(&[], 0)] {
            let packed = packed.unwrap();
            assert_eq!((packed.documents().count(), packed.longest_len(), packed.longest()), (0, 0, None));
        }
        let empty = PackedDocuments::from_cu_seqlens(&[0, 0, 1, 1], 1).unwrap();
        assert_eq!(empty.documents().map(|document| document.keys).collect::<Vec<_>>(), [0, 1, 0]);
        assert_eq!(empty.longest().map(|(number, _)| number), Some(1));
        let skipped = PackedDocuments::from_ids(&[0, 0, 5], 1).unwrap();
        assert_eq!(skipped, PackedDocuments::from_cu_seqlens(&[0, 2, 3], 3).unwrap());
        let padding = PackedDocuments::from_ids(&[-1, -1], 1).unwrap();
        assert_eq!((padding.segments().len(), padding.documents().count()), (1, 0));
    }

    #[test]
    fn queries_and_keys_may_differ() {
        let packed = PackedDocuments::from_cu_seqlens_qk(&[0, 3, 4, 4], &[0, 5, 5, 7], 4, 7).unwrap();
        let sizes: Vec<[usize; 4]> =
            packed.documents().map(|it| [it.first_query, it.queries, it.first_key, it.keys]).collect();
        assert_eq!(sizes, [[0, 3, 0, 5], [3, 1, 5, 0], [4, 0, 5, 2]]);
        assert!(packed.documents().all(|document| !document.is_padding()));
        assert_eq!(packed.longest_len(), 5);
        let last = PackedDocuments::from_ids(&[0, 0, 0, 1, 1, -1], 1).unwrap().last_queries(4).unwrap();
        let queries: Vec<[usize; 2]> = last.segments().iter().map(|it| [it.first_query, it.queries]).collect();
        assert_eq!(queries, [[0, 1], [1, 2], [3, 1]]);
        assert!(message(last.last_queries(5)).starts_with("5 queries exceed"));
    }

    /// Rows of lengths of documents, and the number of tokens of a row.
    fn packings() -> impl Strategy<Value = (Vec<Vec<usize>>, usize)> {
        let length = prop_oneof![Just(0usize), Just(1), 2usize..9];
        (vec(vec(length, 0..6), 0..4), 0usize..4).prop_map(|(rows, padding)| {
            let most = rows.iter().map(|row| row.iter().sum::<usize>()).max().unwrap_or(0);
            (rows, most + padding)
        })
    }

    proptest! {
        #[test]
        fn all_descriptions_agree((rows, tokens) in packings()) {
            let packed = PackedDocuments::from_lengths(rows.iter().map(Vec::as_slice), tokens).unwrap();
            prop_assert_eq!(packed.rows(), rows.len());
            let found: Vec<Vec<usize>> =
                (0..rows.len()).map(|row| packed.row(row).map(|document| document.keys).collect()).collect();
            prop_assert_eq!(&found, &rows);
            // segments cover every token once
            let covered: usize = packed.segments().iter().map(|segment| segment.keys).sum();
            prop_assert_eq!(covered, rows.len() * tokens);
            let (ids, starts, ends) = (packed.document_ids(), packed.starts(), packed.ends());
            for (at, position) in packed.position_ids().into_iter().enumerate() {
                let (row, token) = (at / tokens, at % tokens);
                let same = (0..tokens).filter(|other| ids[at] >= 0 && ids[row * tokens + other] == ids[at]);
                let same: Vec<usize> = same.collect();
                prop_assert_eq!(starts[at], same.first().copied().unwrap_or(tokens));
                prop_assert_eq!(ends[at], same.last().map_or(0, |last| last + 1));
                prop_assert_eq!(position, if ids[at] >= 0 { token - starts[at] } else { 0 });
            }
            // ids do not show empty documents
            let shown: Vec<Vec<usize>> =
                rows.iter().map(|row| row.iter().copied().filter(|length| *length > 0).collect()).collect();
            if tokens > 0 && !rows.is_empty() {
                let by_ids = PackedDocuments::from_ids(&ids, rows.len()).unwrap();
                let expected = PackedDocuments::from_lengths(shown.iter().map(Vec::as_slice), tokens).unwrap();
                prop_assert_eq!(by_ids, expected);
            }
            let longest = rows.iter().flatten().copied().max().unwrap_or(0);
            prop_assert_eq!(packed.longest_len(), longest);
            for (row, lengths) in rows.iter().enumerate() {
                let alone = packed.slice_rows(row..row + 1);
                let own = PackedDocuments::from_lengths([lengths.as_slice()], tokens).unwrap();
                prop_assert_eq!(&alone, &own);
                let cu: Vec<i64> = packed.cu_seqlens(row).into_iter().map(|end| end as i64).collect();
                let total = lengths.iter().sum();
                let by_cu = PackedDocuments::from_cu_seqlens(&cu, total).unwrap();
                prop_assert_eq!(by_cu, PackedDocuments::from_lengths([lengths.as_slice()], total).unwrap());
            }
        }

        #[test]
        fn ids_are_accepted_only_if_documents_stand_together(ids in vec(-1i64..4, 0..9)) {
            let documents: Vec<i64> = ids.iter().copied().filter(|id| *id >= 0).collect();
            let behind = ids[documents.len()..].iter().all(|id| *id == -1);
            let accepted = PackedDocuments::from_ids(&ids, 1).is_ok();
            prop_assert_eq!(accepted, behind && documents.is_sorted());
        }
    }
}
