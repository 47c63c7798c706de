package client

import (
	"iter"
	"maps"
	"reflect"
)

// DiffStore contains the desired and the applied entries of a backend, and computes their difference. The cost of a diff
// is proportional to the number of changes.
//
// Fill in the desired entries with Set, Delete and Replace. Request the Diff and apply it. Then:
//
//   - If the diff was applied, call Commit. If only a part of it was applied, call CommitKey for each key of this part.
//   - If it is unknown what is applied now, call Forget.
//   - If nothing was applied, call neither. The next diff is the same.
//
// The zero DiffStore has no desired entries, and the applied entries are unknown. If the backend starts with nothing
// applied, call Adopt(nil) first. A DiffStore must not be used by several goroutines at the same time.
type DiffStore[K comparable, V any] struct {
	// Equal compares two values. The default is [reflect.DeepEqual]. For messages, use a function that calls
	// [google.golang.org/protobuf/proto.Equal].
	Equal func(a, b V) bool

	desired, applied map[K]V
	changed          map[K]struct{} // The keys at which desired and applied differ; empty while applied is unknown.
	known            bool           // Whether the applied entries are known.
}

// Diff is what turns the applied entries into the desired ones.
type Diff[K comparable, V any] struct {
	// Unknown means that the applied entries are unknown. Replace all of them with Set.
	Unknown bool
	// Set contains the desired entries that are new or different.
	Set map[K]V
	// Removed contains the applied entries to remove.
	Removed map[K]V
}

// IsEmpty returns whether there is nothing to change.
func (d Diff[K, V]) IsEmpty() bool { return !d.Unknown && len(d.Set) == 0 && len(d.Removed) == 0 }

// Set sets the desired value at a key.
func (s *DiffStore[K, V]) Set(key K, value V) {
	put(&s.desired, key, value)
	s.compare(key)
}

// Delete deletes the desired value at a key.
func (s *DiffStore[K, V]) Delete(key K) {
	delete(s.desired, key)
	s.compare(key)
}

// Replace replaces all desired entries.
func (s *DiffStore[K, V]) Replace(desired map[K]V) {
	for key := range s.desired {
		if _, stays := desired[key]; !stays {
			s.Delete(key)
		}
	}
	for key, value := range desired {
		s.Set(key, value)
	}
}

// Desired returns the desired value at a key, and whether there is one.
func (s *DiffStore[K, V]) Desired(key K) (V, bool) {
	value, ok := s.desired[key]
	return value, ok
}

// Applied returns the applied value at a key, and whether one is known.
func (s *DiffStore[K, V]) Applied(key K) (V, bool) {
	value, ok := s.applied[key]
	return value, ok
}

// All returns all desired entries.
func (s *DiffStore[K, V]) All() iter.Seq2[K, V] { return maps.All(s.desired) }

// Adopt sets all applied entries, for instance as read from the kernel.
func (s *DiffStore[K, V]) Adopt(applied map[K]V) {
	s.applied, s.known = maps.Clone(applied), true
	clear(s.changed)
	for key := range s.applied {
		s.compare(key)
	}
	for key := range s.desired {
		s.compare(key)
	}
}

// Diff returns the difference between the applied and the desired entries.
func (s *DiffStore[K, V]) Diff() Diff[K, V] {
	if !s.known {
		return Diff[K, V]{Unknown: true, Set: maps.Clone(s.desired)}
	}
	diff := Diff[K, V]{Set: map[K]V{}, Removed: map[K]V{}}
	for key := range s.changed {
		if value, ok := s.desired[key]; ok {
			diff.Set[key] = value
		} else {
			diff.Removed[key] = s.applied[key]
		}
	}
	return diff
}

// Commit records that the diff was applied.
func (s *DiffStore[K, V]) Commit() {
	if !s.known {
		s.applied, s.known = maps.Clone(s.desired), true
	}
	for key := range s.changed {
		s.CommitKey(key)
	}
}

// CommitKey records that the diff was applied at one key. While the applied entries are unknown, it has no effect.
func (s *DiffStore[K, V]) CommitKey(key K) {
	if !s.known {
		return
	}
	if value, ok := s.desired[key]; ok {
		put(&s.applied, key, value)
	} else {
		delete(s.applied, key)
	}
	delete(s.changed, key)
}

// Forget records that the applied entries are unknown.
func (s *DiffStore[K, V]) Forget() {
	s.applied, s.changed, s.known = nil, nil, false
}

// compare records whether the values at a key differ.
func (s *DiffStore[K, V]) compare(key K) {
	if !s.known {
		return
	}
	desired, isDesired := s.desired[key]
	applied, isApplied := s.applied[key]
	if isDesired == isApplied && (!isDesired || s.equal(desired, applied)) {
		delete(s.changed, key)
	} else {
		put(&s.changed, key, struct{}{})
	}
}

func (s *DiffStore[K, V]) equal(a, b V) bool {
	if s.Equal != nil {
		return s.Equal(a, b)
	}
	return reflect.DeepEqual(a, b)
}

func put[K comparable, V any](entries *map[K]V, key K, value V) {
	if *entries == nil {
		*entries = map[K]V{}
	}
	(*entries)[key] = value
}
