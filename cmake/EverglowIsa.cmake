# everglow_isa_object(target name isa sources...): compiles the sources for an instruction set as the object library <name>_<isa>, in
# a namespace named after the set, with its own flags, and adds the objects to the target. On other processors than x86-64 the
# sets differ in name only, so that the selection needs no special case.
function(everglow_isa_object target name isa)
  set(flags_portable "")
  set(flags_avx2 "")
  set(flags_avx512 "")
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    set(flags_avx2 -mavx2 -mfma -mf16c)
    set(flags_avx512 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c -mprefer-vector-width=512)
    set(flags_avx512_bf16 ${flags_avx512} -mavx512bf16)
  endif()
  set(flags_compiler "")
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
    # By default GCC 13 keeps a single chain of sums from being fused, but not several side by side: a tile of one row would have
    # other bits than a tile of many.
    set(flags_compiler --param=avoid-fma-max-bits=0)
    # The address sanitizer of GCC 13 and 14 places frames of 64-byte vectors on its own stack without their alignment.
    list(APPEND flags_compiler --param=asan-use-after-return=0)
  endif()
  add_library(${name}_${isa} OBJECT ${ARGN})
  target_link_libraries(${name}_${isa} PRIVATE everglow_build)
  target_compile_definitions(${name}_${isa} PRIVATE EVERGLOW_ISA_NAMESPACE=${isa})
  target_compile_options(${name}_${isa} PRIVATE ${flags_${isa}} ${flags_compiler} $<$<CONFIG:Release>:-O3> -ffp-contract=fast -fno-math-errno -fno-trapping-math -Wno-psabi)
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:${name}_${isa}>)
endfunction()

# everglow_isa_objects(target name sources...): the same for each of portable, avx2 and avx512.
function(everglow_isa_objects target name)
  foreach(isa portable avx2 avx512)
    everglow_isa_object(${target} ${name} ${isa} ${ARGN})
  endforeach()
endfunction()

# everglow_isa_sources(target): everglow_isa_objects of every source below src/**/isa/, and once more with dot products of bf16
# what has some.
function(everglow_isa_sources target)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/*/isa/*.cpp)
  everglow_isa_objects(${target} everglow ${sources})
  set(dots ${sources})
  list(FILTER dots INCLUDE REGEX "/gemm/isa/|/cpu/isa/attention")
  everglow_isa_object(${target} everglow avx512_bf16 ${dots})
endfunction()
