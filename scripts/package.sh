# What scripts/deb and scripts/deb-controller share: sourced from the root of the repository.
# It sets version, maintainer, arch and root, an empty tree that is gone when the script ends.

version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version *= *"\(.*\)"/\1/p' Cargo.toml)
# Whoever builds it answers for it.
maintainer="${DEBFULLNAME:-Tidegate authors} <${DEBEMAIL:-tidegate@example.org}>"
arch=$(dpkg --print-architecture)
# The same source makes the same package.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"

# MODE FILE PLACE
put() { install -D -m "$1" "$2" "$root/$3"; }

# FILE PLACE: a program or library, without what only debuggers need. A script, which tests build with, stays as it is.
put_program() {
    local kind
    put 755 "$1" "$2"
    kind=$(head -c 4 "$1" | od -An -c | tr -d ' ')
    if [ "$kind" = '177ELF' ]; then
        strip --strip-unneeded --remove-section=.comment --remove-section=.note "$root/$2"
    fi
}

# FILE...: the oldest release of the C library that all of these run with.
least_glibc() {
    local found
    found=$(objdump -T "$@" 2>/dev/null | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -1 || true)
    found=${found:-GLIBC_2.36}
    echo "${found#GLIBC_}"
}

# PACKAGE: the pages, in the layout of the repository, so that the links between them lead somewhere.
put_pages() {
    find README.md PROMISES.md ARCHITECTURE.md CONTRIBUTING.md docs -type f \( -name '*.md' -o -name '*.svg' \) -print0 |
        while IFS= read -r -d '' page; do put 644 "$page" "usr/share/doc/$1/$page"; done
}

# PACKAGE
put_changelog() {
    {
        printf '%s (%s) unstable; urgency=medium\n\n  * Release %s.\n\n' "$1" "$version" "$version"
        printf ' -- %s  %s\n' "$maintainer" "$(date -R -u -d "@$SOURCE_DATE_EPOCH")"
    } | gzip -9n >"$root/usr/share/doc/$1/changelog.gz"
    chmod 644 "$root/usr/share/doc/$1/changelog.gz"
}

installed_size() { du -k -s --apparent-size "$root" | cut -f1; }

# PACKAGE SCRIPTS OUT: builds the package, with the maintainer scripts of a folder, and prints its path.
build() {
    local package=$3/$1_${version}_$arch.deb script
    for script in postinst prerm postrm; do put 755 "$2/$script" "DEBIAN/$script"; done
    (cd "$root" && find . -path ./DEBIAN -prune -o -type f -printf '%P\0' | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
    chmod 644 "$root"/DEBIAN/{control,md5sums}
    mkdir -p "$3"
    dpkg-deb --root-owner-group --build "$root" "$package" >/dev/null
    echo "$package"
}
