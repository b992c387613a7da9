//! Numbers for generated tests: the same from the same seed, on every machine.

/// xorshift64*.
pub struct Random(u64);

impl Random {
    /// Begins a row; 0 would stay 0 and is replaced.
    pub fn new(seed: u64) -> Self {
        Self(seed.max(1))
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number from 0 to `bound - 1`; `bound` is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        ((self.number() >> 32) as usize) % bound
    }

    /// True once in `times`.
    pub fn chance(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// One of several.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}
