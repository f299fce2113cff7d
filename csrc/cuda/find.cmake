# Finds the dependencies of the module `_cuda`. Sets PYDLBENCH_CUDA_MISSING to a sentence on missing
# ones with the way to install them, or empty; then the target pydlbench_cuda_headers and the
# language CUDA can be used. Headers only: cuDNN and cuBLASLt are loaded at run time.

set(PYDLBENCH_CUDA_MISSING "")
set(PYDLBENCH_CUDA_ARCHITECTURES "")
set(how "PYDLBENCH_CUDA=1 pip install '.[cuda]'")

# A macro, so that return() ends this file.
macro(cuda_missing reason)
  set(PYDLBENCH_CUDA_MISSING "pydlbench was built without CUDA: ${reason}")
  return()
endmacro()

if(PYDLBENCH_CUDA STREQUAL "OFF")
  cuda_missing("that was switched off; ${how} builds it")
endif()

# Folders of Python's packages, including those of pip's build environment.
execute_process(
  COMMAND "${Python_EXECUTABLE}" -c "import sys; print(';'.join(p for p in sys.path if 'packages' in p))"
  OUTPUT_VARIABLE site_packages OUTPUT_STRIP_TRAILING_WHITESPACE)

# A toolkit, else the compiler of NVIDIA's wheels for CUDA 13. Those for CUDA 12 have none.
# check_language() tests the compiler in a separate project, so that a broken one is no error.
include(CheckLanguage)
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  list(TRANSFORM site_packages APPEND /nvidia/cu13 OUTPUT_VARIABLE wheel_toolkits)
  find_program(PYDLBENCH_NVCC nvcc PATHS ENV CUDA_HOME ENV CUDA_PATH ENV CONDA_PREFIX /usr/local/cuda
               ${wheel_toolkits} PATH_SUFFIXES bin)
  if(PYDLBENCH_NVCC)
    set(ENV{CUDACXX} "${PYDLBENCH_NVCC}")
  endif()
endif()
# The wheels have libraries in lib, where neither nvcc nor CMake looks, and no libcudart.so.
if("$ENV{CUDACXX}" MATCHES "^(.*/nvidia/cu13)/bin/nvcc$")
  set(ENV{LIBRARY_PATH} "${CMAKE_MATCH_1}/lib:$ENV{LIBRARY_PATH}")
  set(CUDA_CUDART "${CMAKE_MATCH_1}/lib/libcudart_static.a")
endif()
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  cuda_missing("no working nvcc was found; ${how} brings one; or install the CUDA toolkit (12 or 13), and put nvcc on PATH")
endif()
execute_process(COMMAND "${CMAKE_CUDA_COMPILER}" --version OUTPUT_VARIABLE nvcc_says ERROR_QUIET)
if(NOT nvcc_says MATCHES "release ([0-9]+\\.[0-9]+)")
  cuda_missing("${CMAKE_CUDA_COMPILER} is not NVIDIA's nvcc; put that on PATH, and run ${how}")
endif()
set(nvcc_version ${CMAKE_MATCH_1})
if(nvcc_version VERSION_LESS 12)
  cuda_missing("nvcc ${nvcc_version} was found, but 12 or later is needed; install a newer CUDA toolkit, and run ${how}")
endif()

if(nvcc_version VERSION_LESS 13)
  set(how "PYDLBENCH_CUDA=12 pip install '.[cuda12]'")
endif()
set(switch_major "$ENV{PYDLBENCH_CUDA}")
if(switch_major MATCHES "^(1|13)$" AND nvcc_version VERSION_LESS 13
   OR switch_major STREQUAL "12" AND NOT nvcc_version VERSION_LESS 13)
  message(WARNING "nvcc ${nvcc_version} was found, but PYDLBENCH_CUDA=${switch_major} takes the \
libraries of another CUDA, which an older driver may refuse: ${how} is the one for this nvcc")
endif()

# Set before the language is enabled, which would otherwise choose one old architecture. Each is built
# as machine code, the newest also as PTX for later GPUs.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND DEFINED ENV{CMAKE_CUDA_ARCHITECTURES})
  set(CMAKE_CUDA_ARCHITECTURES $ENV{CMAKE_CUDA_ARCHITECTURES})
endif()
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
  set(CMAKE_CUDA_ARCHITECTURES 75-real 80-real 86-real 89-real)
  if(nvcc_version VERSION_LESS 13)
    list(PREPEND CMAKE_CUDA_ARCHITECTURES 70-real)
  endif()
  if(nvcc_version VERSION_LESS 12.8)
    list(APPEND CMAKE_CUDA_ARCHITECTURES 90)
  else()
    list(APPEND CMAKE_CUDA_ARCHITECTURES 90-real 100-real 120)
  endif()
endif()
enable_language(CUDA)
find_package(CUDAToolkit ${nvcc_version} REQUIRED)

# Folders of headers: the user's variables, Python's packages, the toolkit, conda.
string(REGEX MATCH "^[0-9]+" cuda_major ${nvcc_version})
if(cuda_major EQUAL 12)
  set(wheel_cublas nvidia/cublas/include)
else()
  set(wheel_cublas nvidia/cu${cuda_major}/include)
endif()
function(find_headers variable header)
  find_path(${variable} ${header} HINTS ${ARGN} NO_DEFAULT_PATH)
  find_path(${variable} ${header} HINTS ${CUDAToolkit_INCLUDE_DIRS} ENV CONDA_PREFIX PATH_SUFFIXES include)
endfunction()
list(TRANSFORM site_packages APPEND /nvidia/cudnn/include OUTPUT_VARIABLE wheel_cudnn)
list(TRANSFORM site_packages APPEND /${wheel_cublas} OUTPUT_VARIABLE wheel_cublas)
find_headers(PYDLBENCH_CUDNN_INCLUDE cudnn_version.h "$ENV{CUDNN_PATH}/include" ${wheel_cudnn})
# The toolkit's first: a wheel may contain headers of the runtime in another minor version.
find_headers(PYDLBENCH_CUBLASLT_INCLUDE cublasLt.h ${CUDAToolkit_INCLUDE_DIRS} ${wheel_cublas})

set(cudnn_version 0)
if(PYDLBENCH_CUDNN_INCLUDE)
  # Debian's cudnn_version.h only names the other one.
  file(GLOB version_headers ${PYDLBENCH_CUDNN_INCLUDE}/cudnn_version*.h)
  foreach(header IN LISTS version_headers)
    file(STRINGS ${header} lines REGEX "#define CUDNN_(MAJOR|MINOR|PATCHLEVEL) ")
    if("${lines}" MATCHES "MAJOR ([0-9]+).*MINOR ([0-9]+).*PATCHLEVEL ([0-9]+)")
      set(cudnn_version ${CMAKE_MATCH_1}.${CMAKE_MATCH_2}.${CMAKE_MATCH_3})
    endif()
  endforeach()
endif()
if(cudnn_version VERSION_LESS 9)
  cuda_missing("no headers of cuDNN 9 were found (CUDNN_PATH names the folder above them); ${how} brings them")
endif()
if(NOT PYDLBENCH_CUBLASLT_INCLUDE)
  cuda_missing("cublasLt.h was not found; ${how} brings it")
endif()
message(STATUS "CUDA ${CUDAToolkit_VERSION}, cuDNN ${cudnn_version} in ${PYDLBENCH_CUDNN_INCLUDE}, "
               "cuBLASLt in ${PYDLBENCH_CUBLASLT_INCLUDE}")

add_library(pydlbench_cuda_headers INTERFACE)
# The toolkit's first, as above.
target_include_directories(
  pydlbench_cuda_headers SYSTEM
  INTERFACE ${CUDAToolkit_INCLUDE_DIRS} ${PYDLBENCH_CUDNN_INCLUDE} ${PYDLBENCH_CUBLASLT_INCLUDE})

# For messages: "75, 80, 90, PTX 90".
set(ptx "")
foreach(architecture IN LISTS CMAKE_CUDA_ARCHITECTURES)
  if(architecture MATCHES "^([0-9]+[a-z]?)(-real|-virtual|)$")
    set(number ${CMAKE_MATCH_1})
    if(NOT CMAKE_MATCH_2 STREQUAL "-virtual")
      list(APPEND PYDLBENCH_CUDA_ARCHITECTURES ${number})
    endif()
    if(NOT CMAKE_MATCH_2 STREQUAL "-real")
      list(APPEND ptx "PTX ${number}")
    endif()
  else()
    list(APPEND PYDLBENCH_CUDA_ARCHITECTURES ${architecture})
  endif()
endforeach()
list(APPEND PYDLBENCH_CUDA_ARCHITECTURES ${ptx})
list(JOIN PYDLBENCH_CUDA_ARCHITECTURES ", " PYDLBENCH_CUDA_ARCHITECTURES)
