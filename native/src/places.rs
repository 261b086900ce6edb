//! Places of things in a list where each stands once, found in a time that does not grow with the list.

use std::collections::HashMap;
use std::hash::Hash;

/// The place of each key.
pub struct Places<K> {
    all: HashMap<K, usize>,
}

impl<K> Default for Places<K> {
    fn default() -> Self {
        Self { all: HashMap::new() }
    }
}

impl<K: Eq + Hash> Places<K> {
    /// The place of this key, if it has one.
    pub fn of<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<usize>
    where
        K: std::borrow::Borrow<Q>,
    {
        self.all.get(key).copied()
    }

    /// Give the key a place.
    pub fn put(&mut self, key: K, place: usize) {
        self.all.insert(key, place);
    }

    /// Forget all of them.
    pub fn clear(&mut self) {
        self.all.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::hash::Hasher;

    use super::*;

    thread_local! {
        static COMPARED: Cell<usize> = const { Cell::new(0) };
    }

    /// A key that counts how often one is compared with another.
    struct Key(usize);

    impl PartialEq for Key {
        fn eq(&self, other: &Self) -> bool {
            COMPARED.set(COMPARED.get() + 1);
            self.0 == other.0
        }
    }

    impl Eq for Key {}

    impl Hash for Key {
        fn hash<H: Hasher>(&self, state: &mut H) {
            self.0.hash(state);
        }
    }

    #[test]
    fn each_of_many_is_found_with_about_one_comparison() {
        const MANY: usize = 10_000; // with a list that is searched, 50,000,000 comparisons
        let mut places = Places::default();
        for number in 0..MANY {
            assert_eq!(places.of(&Key(number)), None);
            places.put(Key(number), number);
            assert_eq!(places.of(&Key(number)), Some(number));
        }
        assert!(COMPARED.get() < 4 * MANY, "{} comparisons", COMPARED.get());
    }
}
