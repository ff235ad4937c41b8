# CUDA as a language, and everglow_cuda_sources(target): every source of src/cuda with the flags it needs. No GPU is needed to build.
# The runtime is linked statically and opens the driver when it is first used, so that programs start where there is none; cuBLASLt
# is opened at run time (src/gemm/cublaslt_library.cpp) and never linked.
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(EVERGLOW_NVCC nvcc HINTS ENV CUDA_PATH ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES bin)
  mark_as_advanced(EVERGLOW_NVCC)
  if(NOT EVERGLOW_NVCC)
    message(FATAL_ERROR "EVERGLOW_CUDA is on, but no nvcc was found in PATH or /usr/local/cuda: install a CUDA toolkit (13.0 was tried), "
                        "name it with -DCMAKE_CUDA_COMPILER=..., or configure with -DEVERGLOW_CUDA=OFF")
  endif()
  set(CMAKE_CUDA_COMPILER ${EVERGLOW_NVCC})
endif()
# Machine code for the A100 and the H100 and H200 (90a: with the instructions of Hopper alone), PTX for everything else.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80 90a-real)
endif()
if(NOT DEFINED CMAKE_CUDA_COMPILER_LAUNCHER AND DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)

function(everglow_cuda_sources target)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/cuda/*.cu ${PROJECT_SOURCE_DIR}/src/cuda/*.cpp)
  target_sources(${target} PRIVATE ${sources})
  target_link_libraries(${target} PRIVATE CUDA::cudart_static ${CMAKE_DL_LIBS})
  set_target_properties(${target} PROPERTIES CUDA_RUNTIME_LIBRARY None)
endfunction()
