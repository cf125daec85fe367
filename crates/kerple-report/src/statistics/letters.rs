//! Letters for things that are not told apart: two share one exactly where no test told them apart (Piepho 2004,
//! doi:10.1198/1061860043515, insertion and absorption).

use std::collections::BTreeSet;

/// The letters of each of `n` things, of which the pairs in `apart` differ. Things come in their order, so the first has an `a`.
pub fn letters(n: usize, apart: &[[usize; 2]]) -> Vec<String> {
    let mut groups: Vec<BTreeSet<usize>> = vec![(0..n).collect()];
    for pair in apart {
        let (both, mut kept): (Vec<_>, Vec<_>) =
            groups.into_iter().partition(|group| pair.iter().all(|one| group.contains(one)));
        for group in both {
            kept.extend(pair.iter().map(|one| group.iter().copied().filter(|other| other != one).collect()));
        }
        // a group within another says nothing of its own
        kept.sort_by_key(|group: &BTreeSet<usize>| std::cmp::Reverse(group.len()));
        groups = Vec::new();
        for group in kept {
            if !groups.iter().any(|larger| group.is_subset(larger)) {
                groups.push(group);
            }
        }
    }
    groups.sort();
    let of = |one: usize| {
        let own = groups.iter().enumerate().filter(|(_, group)| group.contains(&one));
        own.map(|(number, _)| letter(number)).collect()
    };
    (0..n).map(of).collect()
}

/// a to z, then a with a number.
fn letter(number: usize) -> String {
    let letter = char::from(b'a' + (number % 26) as u8);
    if number < 26 { letter.to_string() } else { format!("{letter}{}", number / 26) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn letters_by_hand() {
        assert_eq!(letters(3, &[]), ["a", "a", "a"]);
        assert_eq!(letters(3, &[[0, 1], [0, 2], [1, 2]]), ["a", "b", "c"]);
        // the first differs from the last alone
        assert_eq!(letters(3, &[[0, 2]]), ["a", "ab", "b"]);
        assert_eq!(letters(4, &[[0, 2], [0, 3], [1, 3]]), ["a", "ab", "bc", "c"]);
        assert_eq!(letters(0, &[]), [""; 0]);
        assert_eq!((letter(25), letter(26)), ("z".to_owned(), "a1".to_owned()));
    }

    proptest! {
        #[test]
        fn two_share_a_letter_where_they_are_not_apart(n in 1usize..8, draws in prop::collection::vec(any::<bool>(), 28)) {
            let pairs = (0..n).flat_map(|a| (a + 1..n).map(move |b| [a, b]));
            let apart: Vec<[usize; 2]> = pairs.zip(&draws).filter(|(_, apart)| **apart).map(|(pair, _)| pair).collect();
            let found = letters(n, &apart);
            for (a, b) in (0..n).flat_map(|a| (a + 1..n).map(move |b| (a, b))) {
                let shares = found[a].chars().any(|letter| found[b].contains(letter));
                prop_assert_eq!(shares, !apart.contains(&[a, b]), "{:?} {:?}", apart, found);
            }
        }
    }
}
