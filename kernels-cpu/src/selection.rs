//! Rows of a store chosen for each query row.

/// Chosen rows `[rows, 1 + most]`: for each row of the step the count, then so many numbers in ascending order.
#[derive(Debug, Clone, Copy)]
pub struct Selection<'a> {
    /// The numbers.
    pub numbers: &'a [u32],
    /// Most rows that one query can have.
    pub most: usize,
}

impl<'a> Selection<'a> {
    /// What was chosen for a row of the step.
    ///
    /// # Panics
    /// When the step has no such row.
    pub fn row(&self, row: usize) -> &'a [u32] {
        let numbers = &self.numbers[row * (1 + self.most)..][..1 + self.most];
        &numbers[1..][..numbers[0] as usize]
    }
}
