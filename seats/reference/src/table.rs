//! Values while a step runs: tables of numbers for those rows of the step that somebody needs.

use bloomery_program::StateId;
use std::rc::Rc;

/// Some of the rows of a step, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowSet {
    rows: Vec<usize>,
    /// For each row of the step its place in `rows`.
    place: Vec<Option<usize>>,
}

impl RowSet {
    /// The rows for which the mask is true.
    pub fn from_mask(mask: &[bool]) -> Self {
        let mut rows = Vec::new();
        let mut place = Vec::with_capacity(mask.len());
        for (row, wanted) in mask.iter().enumerate() {
            place.push(wanted.then_some(rows.len()));
            if *wanted {
                rows.push(row);
            }
        }
        RowSet { rows, place }
    }

    /// All of `n` rows.
    pub fn all(n: usize) -> Self {
        RowSet::from_mask(&vec![true; n])
    }

    /// The rows of the step, in order.
    pub fn rows(&self) -> &[usize] {
        &self.rows
    }

    /// How many rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

/// `[rows of the set, width]` numbers, row-major.
#[derive(Debug, Clone, PartialEq)]
pub struct Table<T> {
    /// Numbers in a row.
    pub width: usize,
    /// The rows that are there.
    pub rows: Rc<RowSet>,
    /// The numbers.
    pub data: Vec<T>,
}

impl<T: Copy + Default> Table<T> {
    /// A table of default values.
    pub fn new(rows: &Rc<RowSet>, width: usize) -> Self {
        Table { width, rows: Rc::clone(rows), data: vec![T::default(); rows.len() * width] }
    }

    /// The numbers of a row of the step. The executor computes every row that a later node reads; one that is missing
    /// all the same reads as empty.
    pub fn row(&self, row: usize) -> &[T] {
        match self.rows.place.get(row).copied().flatten() {
            Some(place) => &self.data[place * self.width..(place + 1) * self.width],
            None => &[],
        }
    }

    /// Fills every row by a function of the row's number in the step.
    pub fn fill(rows: &Rc<RowSet>, width: usize, mut row: impl FnMut(usize, &mut [T])) -> Self {
        let mut table = Table::new(rows, width);
        if width > 0 {
            for (place, out) in table.data.chunks_exact_mut(width).enumerate() {
                row(rows.rows[place], out);
            }
        }
        table
    }
}

/// What flows between nodes.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// The step's tokens; they are read from the step itself.
    Tokens,
    /// The decision request's spans; they are read from the step itself.
    Spans,
    /// f32 rows; streams lie one after the other in a row.
    Rows(Table<f32>),
    /// Integer rows.
    Index(Table<u32>),
    /// For each row of the step one score per visible row of a store.
    Scores {
        /// The store.
        state: StateId,
        /// The scores.
        rows: Vec<Vec<f32>>,
    },
    /// For each row of the step chosen rows of a store, sorted by position.
    Selection(Vec<Vec<usize>>),
}
