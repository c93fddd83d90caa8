// SPDX-License-Identifier: Apache-2.0
// The few type traits that a kernel takes from cuda::std.
#pragma once
namespace cuda {
namespace std {
template <bool V> struct emu_bool { static constexpr bool value = V; };
template <class A, class B> struct is_same : emu_bool<false> {};
template <class A> struct is_same<A, A> : emu_bool<true> {};
template <class A, class B> inline constexpr bool is_same_v = is_same<A, B>::value;
template <class T> struct is_floating_point
    : emu_bool<is_same_v<T, float> || is_same_v<T, double>> {};
template <class T> struct is_integral
    : emu_bool<is_same_v<T, bool> || is_same_v<T, char> || is_same_v<T, signed char> || is_same_v<T, unsigned char> ||
               is_same_v<T, short> || is_same_v<T, unsigned short> || is_same_v<T, int> || is_same_v<T, unsigned> ||
               is_same_v<T, long> || is_same_v<T, unsigned long> || is_same_v<T, long long> ||
               is_same_v<T, unsigned long long>> {};
template <class T, bool = is_integral<T>::value> struct is_signed : emu_bool<(T(-1) < T(0))> {};
template <class T> struct is_signed<T, false> : is_floating_point<T> {};
template <class T> struct is_unsigned : emu_bool<is_integral<T>::value && !is_signed<T>::value> {};
template <bool C, class T = void> struct enable_if {};
template <class T> struct enable_if<true, T> { using type = T; };
template <bool C, class A, class B> struct conditional { using type = A; };
template <class A, class B> struct conditional<false, A, B> { using type = B; };
}  // namespace std
}  // namespace cuda
