package client

import (
	"maps"
	"math/rand/v2"
	"testing"
)

// applied is what a backend holds after it has applied a diff.
func applied(diff Diff[int, int], before map[int]int) map[int]int {
	after := maps.Clone(before)
	if diff.Unknown {
		clear(after)
	}
	maps.Copy(after, diff.Set)
	for key := range diff.Removed {
		delete(after, key)
	}
	return after
}

// TestApplyingTheDiffGivesTheDesiredState plays random changes against a backend that sometimes fails.
func TestApplyingTheDiffGivesTheDesiredState(t *testing.T) {
	for seed := range uint64(1000) {
		random := rand.New(rand.NewPCG(seed, 0))
		entries := func() map[int]int {
			some := map[int]int{}
			for range random.IntN(8) {
				some[random.IntN(12)] = random.IntN(3)
			}
			return some
		}
		var store DiffStore[int, int]
		holds := entries()
		if random.IntN(2) == 0 {
			store.Adopt(holds)
		}
		var desired map[int]int
		for range 8 {
			desired = entries()
			store.Replace(desired)
			diff := store.Diff()
			switch random.IntN(5) {
			case 0: // Nothing is applied.
			case 1: // It is unknown what was applied.
				holds = applied(diff, holds)
				maps.DeleteFunc(holds, func(key, _ int) bool { return key%2 == 0 })
				store.Forget()
			case 2:
				store.Adopt(holds)
			case 3: // A part is applied.
				if diff.Unknown {
					break
				}
				for key, value := range diff.Set {
					if key%2 == 0 {
						holds[key] = value
						store.CommitKey(key)
					}
				}
				for key := range diff.Removed {
					if key%2 == 0 {
						delete(holds, key)
						store.CommitKey(key)
					}
				}
			default:
				holds = applied(diff, holds)
				store.Commit()
				if !store.Diff().IsEmpty() || !maps.Equal(holds, desired) {
					t.Fatalf("seed %d: after a commit, the backend holds %v instead of %v, and the diff is %v", seed, holds, desired, store.Diff())
				}
			}
			if got := maps.Collect(store.All()); !maps.Equal(got, desired) {
				t.Fatalf("seed %d: %v is desired instead of %v", seed, got, desired)
			}
		}
		if holds = applied(store.Diff(), holds); !maps.Equal(holds, desired) {
			t.Fatalf("seed %d: the backend holds %v instead of %v", seed, holds, desired)
		}
	}
}

func TestADiffContainsOnlyChanges(t *testing.T) {
	var store DiffStore[int, int]
	for key := range 1000 {
		store.Set(key, key)
	}
	equals(t, "unknown", store.Diff().Unknown, true)
	store.Commit()
	store.Set(7, 0)
	store.Set(8, 8)
	store.Delete(9)
	store.Delete(1001)
	equals(t, "diff", store.Diff(), Diff[int, int]{Set: map[int]int{7: 0}, Removed: map[int]int{9: 9}})
	value, _ := store.Applied(7)
	equals(t, "applied", value, 7)
	store.Set(7, 7)
	store.Set(9, 9)
	equals(t, "an undone change is not a change", store.Diff().IsEmpty(), true)
}

func TestEqualComparesValues(t *testing.T) {
	store := DiffStore[string, int]{Equal: func(a, b int) bool { return a%10 == b%10 }}
	store.Adopt(map[string]int{"a": 1, "b": 2})
	store.Replace(map[string]int{"a": 11, "b": 3})
	equals(t, "diff", store.Diff().Set, map[string]int{"b": 3})
}

func TestAdoptDiscardsWhatWasKnown(t *testing.T) {
	var store DiffStore[int, int]
	store.Adopt(map[int]int{1: 1})
	equals(t, "diff", store.Diff(), Diff[int, int]{Set: map[int]int{}, Removed: map[int]int{1: 1}})
	store.Adopt(nil)
	equals(t, "nothing is left to remove", store.Diff().IsEmpty(), true)
}
