//! Lists that keep a limited number of elements, so that a list too long to be served takes no
//! memory: the rest is read and counted.

use serde::de::{DeserializeSeed, Deserializer, SeqAccess, Visitor};
use std::fmt;

/// The first elements of a list, and its length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CappedList<T> {
    pub(crate) kept: Vec<T>,
    pub(crate) count: usize,
}

/// Reads a list of which at most so many elements are kept, each by a seed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UpTo<S>(pub(crate) usize, pub(crate) S);

impl<'de, S: DeserializeSeed<'de> + Copy> DeserializeSeed<'de> for UpTo<S> {
    type Value = CappedList<S::Value>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, S: DeserializeSeed<'de> + Copy> Visitor<'de> for UpTo<S> {
    type Value = CappedList<S::Value>;

    fn expecting(&self, out: &mut fmt::Formatter) -> fmt::Result {
        write!(out, "a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Self::Value, A::Error> {
        let UpTo(most, each) = self;
        let (mut kept, mut count) = (Vec::new(), 0);
        while let Some(element) = elements.next_element_seed(each)? {
            count += 1;
            if count <= most {
                kept.push(element);
            }
        }
        Ok(CappedList { kept, count })
    }
}

/// Reads JSON by a seed.
pub(crate) fn read<'de, S: DeserializeSeed<'de>>(json: &'de str, seed: S) -> serde_json::Result<S::Value> {
    let mut deserializer = serde_json::Deserializer::from_str(json);
    let found = seed.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::marker::PhantomData;

    #[test]
    fn the_rest_is_counted_and_checked() {
        let ids = UpTo(2, PhantomData::<u32>);
        assert_eq!(read("[1, 2, 3, 4]", ids).unwrap(), CappedList { kept: vec![1, 2], count: 4 });
        let lists = read("[[1, 2, 3], [], [4], [5]]", UpTo(3, ids)).unwrap();
        assert_eq!((lists.count, lists.kept[0].count, &lists.kept[2].kept[..]), (4, 3, &[4][..]));
        for wrong in ["[1, 2, 3, -1]", "[1", "[1] 2", "{}"] {
            assert!(read(wrong, ids).is_err(), "{wrong}");
        }
    }
}
