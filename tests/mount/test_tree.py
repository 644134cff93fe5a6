from stoker.mount.tree import Tree


def test_folders_and_files_are_found_and_sorted() -> None:
    tree = Tree(["b/2.jpg", "b/1.jpg", "a/deep/er/x", "top.json"])
    assert tree.listing("/") == ["a", "b", "top.json"]
    assert tree.listing("/b") == ["1.jpg", "2.jpg"]
    assert tree.listing("/a/deep") == ["er"]
    assert (tree.number("/b/1.jpg"), tree.number("/a/deep/er/x"), tree.number("/top.json")) == (1, 2, 3)
    assert (tree.number("/b"), tree.listing("/b/1.jpg"), tree.number("/nothing"), tree.listing("/nothing")) == (None,) * 4
    assert len(tree) == 4


def test_names_that_are_no_paths_are_left_out() -> None:
    names = ["a", "a/b", "c/d", "c", "x//y", "../z", "./w", "", "e/", "\0"]  # stores allow all of these
    tree = Tree(names)
    assert tree.listing("/") == ["a", "c"]
    assert (tree.number("/a"), tree.number("/c/d")) == (0, 2)
    assert tree.left_out == len(names) - 2


def test_an_empty_tree_has_a_root() -> None:
    assert Tree([]).listing("/") == []
