//! A slab: values with reusable numbers.

/// A container for a fixed number of values, each with a number.
#[derive(Debug)]
pub struct Slab<T> {
    values: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    /// A slab for at most `most` values.
    pub fn new(most: usize) -> Self {
        let most = u32::try_from(most).expect("queues are short");
        Self {
            values: (0..most).map(|_| None).collect(),
            free: (0..most).rev().collect(),
        }
    }

    /// Adds a value, or returns it if the slab is full.
    pub fn insert(&mut self, value: T) -> Result<u32, T> {
        let Some(number) = self.free.pop() else {
            return Err(value);
        };
        self.values[number as usize] = Some(value);
        Ok(number)
    }

    /// Removes a value.
    pub fn remove(&mut self, number: u32) -> T {
        let value = self.values[number as usize].take();
        self.free.push(number);
        value.expect("the number is in use")
    }

    /// The value of a number; `None` if the number is free.
    pub fn get(&self, number: u32) -> Option<&T> {
        self.values[number as usize].as_ref()
    }

    /// The number of values.
    #[expect(clippy::len_without_is_empty, reason = "not needed")]
    pub fn len(&self) -> usize {
        self.values.len() - self.free.len()
    }

    /// The most values that fit.
    pub fn capacity(&self) -> usize {
        self.values.len()
    }

    /// All values with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let numbered = (0..).zip(&self.values);
        numbered.filter_map(|(number, value)| Some((number, value.as_ref()?)))
    }
}

impl<T> std::ops::Index<u32> for Slab<T> {
    type Output = T;

    fn index(&self, number: u32) -> &T {
        self.get(number).expect("the number is in use")
    }
}

impl<T> std::ops::IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, number: u32) -> &mut T {
        let value = self.values[number as usize].as_mut();
        value.expect("the number is in use")
    }
}
