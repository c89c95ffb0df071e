//! What the dynamic linker has loaded, and where in it a name is defined.
//!
//! `dlsym` would tell, but before glibc 2.34 it is in a library that not every program loads; before glibc 2.36 `RTLD_NEXT` can find a
//! version that is there for old programs only; and when it finds nothing it takes memory from the program's heap, and tells the program
//! by `dlerror`. Every C library has `dl_iterate_phdr`, which shows the objects in the order in which a name is looked for in them.

use std::ffi::CStr;
use std::mem::size_of;
use std::ptr::null_mut;

use libc::{Elf64_Phdr, Elf64_Sym, c_char, c_int, c_void, dl_phdr_info, pthread_key_t, size_t};

pub(crate) mod linked;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_GNU_EH_FRAME: u32 = 0x6474_e550;

const DT_NULL: usize = 0;
const DT_HASH: usize = 4;
const DT_STRTAB: usize = 5;
const DT_SYMTAB: usize = 6;
const DT_SONAME: usize = 14;
const DT_GNU_HASH: usize = 0x6fff_fef5;
const DT_VERSYM: usize = 0x6fff_fff0;

/// Of an entry of `DT_VERSYM`: for programs that name this version only.
const VERSION_HIDDEN: u16 = 0x8000;
/// Of the same: for nobody but the object itself.
const VERSION_LOCAL: u16 = 0;

const STB_LOCAL: u8 = 0;
const STT_OBJECT: u8 = 1;
const STT_FUNC: u8 = 2;
const STT_NOTYPE: u8 = 0;
const STT_GNU_IFUNC: u8 = 10;

/// The tables of one object that names are looked up by.
#[derive(Debug, Default)]
struct Object {
    base: usize,
    symbols: usize,
    strings: usize,
    versions: usize,
    gnu_hash: usize,
    hash: usize,
    /// Where in the strings its own name is; zero: it has none.
    soname: usize,
}

/// Which objects are looked at.
#[derive(Clone, Copy, Debug)]
enum Among<'a> {
    /// Those that a name is looked for in when this library does not define it. What `RTLD_NEXT` means.
    AfterOurs,
    All,
    /// One with this name.
    Named(&'a CStr),
}

/// A question, on its way through the objects.
struct Search<'a> {
    name: &'a CStr,
    among: Among<'a>,
    has_passed_ours: bool,
    found: Option<(usize, u8)>,
}

/// The definition that the program would get if this library did not define the name. Null: nobody else does.
pub(crate) fn next(name: &CStr) -> *mut c_void {
    find(name, Among::AfterOurs)
}

/// What this library defines for everybody. Null: nothing of that name.
#[cfg(target_arch = "x86_64")]
pub(crate) fn ours(name: &CStr) -> *mut c_void {
    let found = linked::ours().and_then(|object| object.look_up(name));
    found.map_or(null_mut(), |(address, _)| address as *mut c_void)
}

/// The first definition in whatever object. Null: there is none.
pub(crate) fn any(name: &CStr) -> *mut c_void {
    find(name, Among::All)
}

/// The definition in the library of that name, if it is loaded.
pub(crate) fn of_library(library: &CStr, name: &CStr) -> *mut c_void {
    find(name, Among::Named(library))
}

/// Functions that leave a thread something for its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keys {
    pub(crate) create: CreateKey,
    pub(crate) set: SetSpecific,
}

pub(crate) type Destructor = extern "C" fn(*mut c_void);
type CreateKey = unsafe extern "C" fn(*mut pthread_key_t, Option<Destructor>) -> c_int;
pub(crate) type SetSpecific = unsafe extern "C" fn(pthread_key_t, *const c_void) -> c_int;

/// They are in a library of their own before glibc 2.34, which a program without threads need not load, or not yet.
pub(crate) fn keys() -> Option<Keys> {
    let (create, set) = (any(c"pthread_key_create"), any(c"pthread_setspecific"));
    // SAFETY: the function of this name has this type (POSIX), and null is `None`.
    let create: Option<CreateKey> = unsafe { std::mem::transmute(create) };
    // SAFETY: as above.
    let set: Option<SetSpecific> = unsafe { std::mem::transmute(set) };
    Some(Keys {
        create: create?,
        set: set?,
    })
}

fn find(name: &CStr, among: Among<'_>) -> *mut c_void {
    let mut search = Search {
        name,
        among,
        has_passed_ours: false,
        found: None,
    };
    // SAFETY: the function gets the search, which lives until the call returns.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    match search.found {
        Some((resolver, STT_GNU_IFUNC)) => {
            // SAFETY: what a symbol of this type names: a function that chooses among several. Those of this processor take nothing,
            // or look at nothing else than the first argument.
            let resolver: extern "C" fn(u64) -> *mut c_void =
                unsafe { std::mem::transmute(resolver) };
            // SAFETY: plain arguments.
            resolver(unsafe { libc::getauxval(libc::AT_HWCAP) })
        }
        Some((address, _)) => address as *mut c_void,
        None => null_mut(),
    }
}

/// Where an object lies, and where it says how its functions' frames are unwound.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Extent {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) frames: usize,
}

/// The object that an address is in, if it can be unwound.
pub(crate) fn around(address: usize) -> Option<Extent> {
    struct Question(usize, Option<Extent>);
    unsafe extern "C" fn visit(info: *mut dl_phdr_info, _: size_t, question: *mut c_void) -> c_int {
        // SAFETY: as passed below; the dynamic linker describes a loaded object.
        let (question, info) = unsafe { (&mut *question.cast::<Question>(), &*info) };
        if !is_within(info, question.0) {
            return 0;
        }
        let base = info.dlpi_addr as usize;
        let place = |header: &Elf64_Phdr| base.wrapping_add(header.p_vaddr as usize);
        let loaded = || headers(info).iter().filter(|it| it.p_type == PT_LOAD);
        let end = |header: &Elf64_Phdr| place(header) + header.p_memsz as usize;
        let frames = headers(info).iter().find(|it| it.p_type == PT_GNU_EH_FRAME);
        question.1 = frames.map(|frames| Extent {
            start: loaded().map(place).min().unwrap_or(base),
            end: loaded().map(end).max().unwrap_or(base),
            frames: place(frames),
        });
        1
    }
    let mut question = Question(address, None);
    // SAFETY: the function gets the question, which lives until the call returns.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut question).cast()) };
    question.1
}

/// For each object. One ends the iteration.
unsafe extern "C" fn visit(info: *mut dl_phdr_info, _bytes: size_t, search: *mut c_void) -> c_int {
    // SAFETY: `find` passes a search of its own, and nobody else has it meanwhile.
    let search = unsafe { &mut *search.cast::<Search<'_>>() };
    // SAFETY: the dynamic linker describes a loaded object.
    let info = unsafe { &*info };
    let is_ours = is_within(info, visit as *const () as usize);
    let is_asked = match search.among {
        Among::AfterOurs => search.has_passed_ours,
        Among::All | Among::Named(_) => !is_ours,
    };
    search.has_passed_ours |= is_ours;
    if !is_asked {
        return 0;
    }
    let Some(object) = Object::of(info) else {
        return 0;
    };
    if let Among::Named(library) = search.among
        && object.soname() != Some(library)
    {
        return 0;
    }
    search.found = object.look_up(search.name);
    c_int::from(search.found.is_some())
}

pub(crate) fn headers(info: &dl_phdr_info) -> &[Elf64_Phdr] {
    // SAFETY: the object's program headers, so many of them, which stay while it is loaded.
    unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) }
}

/// Whether an address is in one of the object's segments.
fn is_within(info: &dl_phdr_info, address: usize) -> bool {
    headers(info).iter().any(|header| {
        let start = (info.dlpi_addr as usize).wrapping_add(header.p_vaddr as usize);
        header.p_type == PT_LOAD && address.wrapping_sub(start) < header.p_memsz as usize
    })
}

/// Reads one value of an object's tables.
///
/// # Safety
/// There is one at `place`.
unsafe fn read<T: Copy>(place: usize) -> T {
    // SAFETY: the caller knows so.
    unsafe { (place as *const T).read_unaligned() }
}

impl Object {
    fn of(info: &dl_phdr_info) -> Option<Object> {
        let base = info.dlpi_addr as usize;
        let dynamic = headers(info)
            .iter()
            .find(|header| header.p_type == PT_DYNAMIC)?;
        let place = base.wrapping_add(dynamic.p_vaddr as usize);
        Object::at(base, place, |value| is_within(info, value))
    }

    /// The object at `base` with its dynamic section at `place`, in which values may be addresses.
    fn at(base: usize, mut place: usize, is_address: impl Fn(usize) -> bool) -> Option<Object> {
        let mut object = Object {
            base,
            ..Object::default()
        };
        loop {
            // SAFETY: the dynamic section is loaded, and ends with an entry of zeros.
            let [tag, value]: [usize; 2] = unsafe { read(place) };
            // Some dynamic linkers put addresses in the place of offsets, others leave the section as it is.
            let address = || {
                if is_address(value) {
                    value
                } else {
                    base.wrapping_add(value)
                }
            };
            match tag {
                DT_NULL => break,
                DT_SYMTAB => object.symbols = address(),
                DT_STRTAB => object.strings = address(),
                DT_VERSYM => object.versions = address(),
                DT_GNU_HASH => object.gnu_hash = address(),
                DT_HASH => object.hash = address(),
                DT_SONAME => object.soname = value,
                _ => {}
            }
            place += size_of::<[usize; 2]>();
        }
        (object.symbols != 0 && object.strings != 0).then_some(object)
    }

    fn soname(&self) -> Option<&CStr> {
        // SAFETY: an offset into the object's strings.
        (self.soname != 0).then(|| unsafe { self.string(self.soname) })
    }

    /// # Safety
    /// The offset comes from the object itself.
    unsafe fn string(&self, offset: usize) -> &CStr {
        // SAFETY: strings of an object end with NUL.
        unsafe { CStr::from_ptr((self.strings + offset) as *const c_char) }
    }

    /// Address and type of the definition of a name.
    fn look_up(&self, name: &CStr) -> Option<(usize, u8)> {
        if self.gnu_hash != 0 {
            self.look_up_by_gnu_hash(name)
        } else if self.hash != 0 {
            self.look_up_by_hash(name)
        } else {
            None
        }
    }

    /// By a table as the GNU linkers make it: a filter, buckets of neighbouring symbols, and their hashes, of which the last of a bucket
    /// is odd.
    fn look_up_by_gnu_hash(&self, name: &CStr) -> Option<(usize, u8)> {
        let hash = gnu_hash(name);
        // SAFETY: the table begins with these four words.
        let [buckets, first, filter_words, shift]: [u32; 4] = unsafe { read(self.gnu_hash) };
        if buckets == 0 || filter_words == 0 {
            return None;
        }
        let filter = self.gnu_hash + 4 * size_of::<u32>();
        let at = (hash as usize / usize::BITS as usize) % filter_words as usize;
        // SAFETY: one of the filter's words.
        let word: usize = unsafe { read(filter + at * size_of::<usize>()) };
        let bit = |hash: u32| 1usize << (hash % usize::BITS);
        let bits = bit(hash) | bit(hash.checked_shr(shift).unwrap_or(0));
        if word & bits != bits {
            return None;
        }
        let bucket = filter + filter_words as usize * size_of::<usize>();
        let chain = bucket + buckets as usize * size_of::<u32>();
        // SAFETY: one of the buckets.
        let mut index: u32 = unsafe { read(bucket + (hash % buckets) as usize * size_of::<u32>()) };
        while index >= first {
            // SAFETY: every symbol from the first on has a hash.
            let other: u32 = unsafe { read(chain + (index - first) as usize * size_of::<u32>()) };
            if other | 1 == hash | 1
                && let Some(found) = self.definition(index, name)
            {
                return Some(found);
            }
            if other & 1 != 0 {
                break;
            }
            index += 1;
        }
        None
    }

    /// By a table as System V has it: buckets, and for each symbol the next one.
    fn look_up_by_hash(&self, name: &CStr) -> Option<(usize, u8)> {
        // SAFETY: the table begins with these two words.
        let [buckets, symbols]: [u32; 2] = unsafe { read(self.hash) };
        if buckets == 0 {
            return None;
        }
        let bucket = self.hash + 2 * size_of::<u32>();
        let chain = bucket + buckets as usize * size_of::<u32>();
        let at = (system_v_hash(name) % buckets) as usize;
        // SAFETY: one of the buckets.
        let mut index: u32 = unsafe { read(bucket + at * size_of::<u32>()) };
        while index != 0 && index < symbols {
            if let Some(found) = self.definition(index, name) {
                return Some(found);
            }
            // SAFETY: every symbol has a next one.
            index = unsafe { read(chain + index as usize * size_of::<u32>()) };
        }
        None
    }

    /// Address and type of a symbol, if it defines the name, and for everybody.
    fn definition(&self, index: u32, name: &CStr) -> Option<(usize, u8)> {
        let index = index as usize;
        // SAFETY: the hash tables name symbols that there are.
        let symbol: Elf64_Sym = unsafe { read(self.symbols + index * size_of::<Elf64_Sym>()) };
        let (binding, kind) = (symbol.st_info >> 4, symbol.st_info & 0xf);
        let is_usable = symbol.st_shndx != 0
            && symbol.st_value != 0
            && binding != STB_LOCAL
            && [STT_NOTYPE, STT_OBJECT, STT_FUNC, STT_GNU_IFUNC].contains(&kind);
        // SAFETY: the name is an offset into the strings.
        if !is_usable || unsafe { self.string(symbol.st_name as usize) } != name {
            return None;
        }
        if self.versions != 0 {
            // SAFETY: every symbol has a version.
            let version: u16 = unsafe { read(self.versions + index * size_of::<u16>()) };
            if version & VERSION_HIDDEN != 0 || version == VERSION_LOCAL {
                return None;
            }
        }
        Some((self.base.wrapping_add(symbol.st_value as usize), kind))
    }
}

/// The hash of `DT_GNU_HASH`: Bernstein's.
fn gnu_hash(name: &CStr) -> u32 {
    let bytes = name.to_bytes().iter();
    bytes.fold(5381, |hash: u32, byte| {
        hash.wrapping_mul(33).wrapping_add(u32::from(*byte))
    })
}

/// The hash of `DT_HASH` (System V ABI, chapter 5).
fn system_v_hash(name: &CStr) -> u32 {
    name.to_bytes().iter().fold(0, |hash: u32, byte| {
        let hash = (hash << 4).wrapping_add(u32::from(*byte));
        let high = hash & 0xf000_0000;
        (hash ^ (high >> 24)) & !high
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the C library's own: the one that is linked here is ours.
    fn dlsym(name: &CStr) -> *mut c_void {
        type Look = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
        // SAFETY: a C string; the handle is the C library's own, and the function has this type.
        unsafe {
            let library = libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
            let look: Look = std::mem::transmute(of_library(c"libc.so.6", c"dlsym"));
            look(library, name.as_ptr())
        }
    }

    #[test]
    fn a_name_is_found_where_the_dynamic_linker_finds_it() {
        // Plain, chosen at run time, and with a default version that is not the first.
        for name in [
            c"send",
            c"epoll_wait",
            c"posix_spawn",
            c"memcpy",
            c"time",
            c"realpath",
            c"environ",
        ] {
            let (ours, reference) = (of_library(c"libc.so.6", name), dlsym(name));
            assert!(!ours.is_null(), "{name:?}");
            assert_eq!(ours, reference, "{name:?}");
        }
    }

    #[test]
    fn an_object_is_found_by_an_address_in_it() {
        let here = an_object_is_found_by_an_address_in_it as *const () as usize;
        let extent = around(here).expect("this program");
        assert!((extent.start..extent.end).contains(&here));
        assert!((extent.start..extent.end).contains(&extent.frames));
        // SAFETY: within the object, and loaded.
        let version: u8 = unsafe { read(extent.frames) };
        assert_eq!(version, 1, "of the table that says how frames are unwound");
        let on_the_stack = 0u8;
        assert!(around(&raw const on_the_stack as usize).is_none());
    }

    #[test]
    fn what_nobody_defines_is_not_found() {
        for name in [c"millrace_is_no_function", c"", c"sen", c"sendd"] {
            assert!(any(name).is_null(), "{name:?}");
        }
        assert!(of_library(c"libmillrace_is_no_library.so", c"send").is_null());
    }

    #[test]
    fn both_kinds_of_hash_tables_are_known() {
        // SAFETY: prints nothing, and reads what the kernel gives.
        let found = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) };
        assert_ne!(found, 0, "the kernel's own object has both");
        let mut count = 0;
        let mut each = |info: &dl_phdr_info| {
            let Some(object) = Object::of(info).filter(|it| it.hash != 0 && it.gnu_hash != 0)
            else {
                return;
            };
            let name = c"__vdso_clock_gettime";
            let by_gnu_hash = object.look_up_by_gnu_hash(name);
            assert_eq!(by_gnu_hash, object.look_up_by_hash(name));
            count += usize::from(by_gnu_hash.is_some());
        };
        unsafe extern "C" fn go(info: *mut dl_phdr_info, _: size_t, each: *mut c_void) -> c_int {
            // SAFETY: as passed below.
            unsafe { (*each.cast::<&mut dyn FnMut(&dl_phdr_info)>())(&*info) };
            0
        }
        let mut each: &mut dyn FnMut(&dl_phdr_info) = &mut each;
        // SAFETY: the function gets the closure, which lives until the call returns.
        unsafe { libc::dl_iterate_phdr(Some(go), (&raw mut each).cast()) };
        assert_eq!(count, 1);
    }

    #[test]
    fn hashes_are_those_of_the_formats() {
        assert_eq!(gnu_hash(c"printf"), 0x156b_2bb8);
        assert_eq!(gnu_hash(c""), 0x1505);
        assert_eq!(system_v_hash(c"printf"), 0x0779_05a6);
        assert_eq!(system_v_hash(c"syscall"), 0x0b09_985c);
    }
}
