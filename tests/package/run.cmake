# The steps of the package tests: cmake -D mode=... -P run.cmake. Each stops with an error where something is wrong.
cmake_minimum_required(VERSION 3.25)

function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endfunction()

function(install_tree)
  file(REMOVE_RECURSE ${prefix})
  run(${CMAKE_COMMAND} --install ${build} --prefix ${prefix})
endfunction()

# What the consumer prints is checked as well as its status: softmax of {0, log 3} is {0.25, 0.75}.
function(check_consumer program)
  execute_process(COMMAND ${program} OUTPUT_VARIABLE out COMMAND_ERROR_IS_FATAL ANY)
  message("${out}")
  if(NOT out MATCHES "^everglow 0\\.[0-9]+\\.[0-9]+: 0\\.2500 0\\.7500\n")
    message(FATAL_ERROR "expected the version and 0.2500 0.7500")
  endif()
endfunction()

if(mode STREQUAL "install")
  install_tree()

elseif(mode STREQUAL "build_and_install")
  separate_arguments(options UNIX_COMMAND "${options}")
  run(${CMAKE_COMMAND} -S ${source} -B ${build} -G ${generator} -DCMAKE_CXX_COMPILER=${compiler} -DCMAKE_INSTALL_LIBDIR=${libdir}
      -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O0 -DEVERGLOW_TESTS=OFF -DEVERGLOW_TOOL=OFF ${options})
  run(${CMAKE_COMMAND} --build ${build} --parallel 2)
  install_tree()

elseif(mode STREQUAL "find_package")
  file(REMOVE_RECURSE ${build})
  run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/consumer -B ${build} -G ${generator} -DCMAKE_CXX_COMPILER=${compiler}
      -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH=${prefix} "-Dcomponents=$ENV{EVERGLOW_COMPONENTS}")
  run(${CMAKE_COMMAND} --build ${build})
  check_consumer(${build}/consumer)

elseif(mode STREQUAL "pkg_config")
  file(REMOVE_RECURSE ${build})
  file(MAKE_DIRECTORY ${build})
  find_program(pkg_config NAMES pkg-config pkgconf REQUIRED)
  set(ENV{PKG_CONFIG_PATH} ${prefix}/${libdir}/pkgconfig)
  execute_process(COMMAND ${pkg_config} --cflags --libs everglow OUTPUT_VARIABLE flags OUTPUT_STRIP_TRAILING_WHITESPACE
                  COMMAND_ERROR_IS_FATAL ANY)
  separate_arguments(flags UNIX_COMMAND "${flags}")
  run(${compiler} -std=c++20 ${CMAKE_CURRENT_LIST_DIR}/consumer/consumer.cpp ${CMAKE_CURRENT_LIST_DIR}/consumer/exports.cpp
      -o ${build}/consumer ${flags} -Wl,-rpath,${prefix}/${libdir})
  check_consumer(${build}/consumer)

else()
  message(FATAL_ERROR "unknown mode \"${mode}\"")
endif()
