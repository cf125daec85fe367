//! The random numbers of `numpy.random.RandomState`, to repeat data orders made with NumPy exactly.
//!
//! Matsumoto and Nishimura 1998, "Mersenne Twister". NumPy keeps the seeding, the bounded draw and the shuffle below
//! frozen for its legacy generator. Not for new code: everything else here draws from ChaCha.

const STATE: usize = 624;
const SHIFT: usize = 397;

/// The part of `numpy.random.RandomState(seed)` that shuffling needs.
#[derive(Clone)]
pub struct NumpyRandom {
    state: [u32; STATE],
    next: usize,
}

impl NumpyRandom {
    /// `RandomState(seed)`.
    pub fn new(seed: u32) -> NumpyRandom {
        let mut state = [seed; STATE];
        for at in 1..STATE {
            let last = state[at - 1];
            state[at] = (last ^ (last >> 30)).wrapping_mul(1_812_433_253).wrapping_add(at as u32);
        }
        NumpyRandom { state, next: STATE }
    }

    /// `RandomState.shuffle`: Fisher and Yates from the end.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.up_to(last as u64) as usize);
        }
    }

    /// A uniform number in `0..=limit`: bits under the smallest covering mask, drawn again while above the limit.
    fn up_to(&mut self, limit: u64) -> u64 {
        let mask = u64::MAX.checked_shr(limit.leading_zeros()).unwrap_or(0);
        loop {
            let draw = if limit <= u32::MAX.into() { self.draw().into() } else { self.draw_wide() };
            if draw & mask <= limit {
                return draw & mask;
            }
        }
    }

    fn draw_wide(&mut self) -> u64 {
        let high = u64::from(self.draw());
        high << 32 | u64::from(self.draw())
    }

    fn draw(&mut self) -> u32 {
        if self.next == STATE {
            self.twist();
        }
        let mut word = self.state[self.next];
        self.next += 1;
        word ^= word >> 11;
        word ^= (word << 7) & 0x9d2c_5680;
        word ^= (word << 15) & 0xefc6_0000;
        word ^ (word >> 18)
    }

    fn twist(&mut self) {
        for at in 0..STATE {
            let mixed = (self.state[at] & 0x8000_0000) | (self.state[(at + 1) % STATE] & 0x7fff_ffff);
            let odd = if mixed & 1 == 1 { 0x9908_b0df } else { 0 };
            self.state[at] = self.state[(at + SHIFT) % STATE] ^ (mixed >> 1) ^ odd;
        }
        self.next = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// NumPy 2: `r = RandomState(1235); a = arange(n); r.shuffle(a)`, twice in a row, first eight of each.
    #[test]
    fn shuffles_like_numpy() {
        let mut random = NumpyRandom::new(1235);
        let mut small: Vec<u32> = (0..20).collect();
        random.shuffle(&mut small);
        assert_eq!(small[..8], [5, 1, 12, 13, 10, 4, 14, 17]);
        let mut large: Vec<u32> = (0..100_000).collect();
        random.shuffle(&mut large);
        assert_eq!(large[..8], [4320, 6379, 8951, 69755, 55886, 94592, 37836, 70267]);
    }

    #[test]
    fn a_single_item_draws_nothing() {
        let mut random = NumpyRandom::new(7);
        random.shuffle(&mut [1]);
        random.shuffle::<u8>(&mut []);
        assert_eq!(random.next, STATE);
    }

    /// NumPy 2: `RandomState(3).randint(0, 2**64, dtype=uint64)` is one wide draw.
    #[test]
    fn wide_draws_put_the_high_word_first() {
        assert_eq!(NumpyRandom::new(3).up_to(u64::MAX), 10160427978662282904);
    }
}
